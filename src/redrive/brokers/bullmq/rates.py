"""A rate as `take.lua` counts it."""

from __future__ import annotations

from redrive.core.policy.flow import Rate, slot_ms


def window_of(rate: Rate | None) -> tuple[int, int, int]:
    """ARGV[5] to [7] of `take.lua`: a rate that all workers of redrive share."""
    if rate is None:
        return 0, 1, 0
    slot = slot_ms(rate)
    return rate.count, slot, -(-rate.per_ms // slot) + 1
