"""Time scaled by FREEFLOW_TIME_SCALE, so that a trial does not take half an hour."""

from __future__ import annotations

import os
from datetime import timedelta

from redrive.core.units import duration_ms

SCALE = float(os.environ.get("FREEFLOW_TIME_SCALE", "1"))


def scaled(duration: str) -> timedelta:
    """A duration of the system, at least a millisecond of it."""
    return timedelta(milliseconds=max(1, round(duration_ms(duration) * SCALE)))
