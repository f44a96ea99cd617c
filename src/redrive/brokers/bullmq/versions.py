"""Which servers BullMQ's scripts run on."""

from __future__ import annotations

from redrive.core.doctor.redis import OLDEST
from redrive.errors import ConfigurationError


def check_version(version: str, where: str) -> None:
    """Raises `ConfigurationError` for a server that is too old; one that does not say is let through."""
    parts = version.split(".")
    if len(parts) < len(OLDEST) or not all(part.isdigit() for part in parts[:2]):
        return
    if (int(parts[0]), int(parts[1])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigurationError(
            f"Redis at {where} is {version}; BullMQ's scripts want {oldest} or newer.",
            hint="Nothing was consumed or published.",
        )
