"""A rate as the scripts count it (`windows.lua`)."""

from __future__ import annotations

from redrive.core.policy.flow import Rate, slot_ms


def window_of(rate: Rate | None) -> tuple[int, int, int]:
    """Starts, ms of one slot, slots that count before the present one; no starts where there is no rate."""
    if rate is None:
        return 0, 1, 0
    slot = slot_ms(rate)
    return rate.count, slot, -(-rate.per_ms // slot) + 1
