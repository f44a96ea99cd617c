"""Apps to read and to start from; run them from the repository's root."""
