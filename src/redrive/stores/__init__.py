"""Store adapters for claims, letters and redrive jobs. Each knows core only, never another adapter."""
