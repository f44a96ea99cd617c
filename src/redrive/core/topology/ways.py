"""Which way a message goes back to its queue, when its wiring does not have every delay.

A wiring with fixed delays that is asked for another one takes the next longer it has; failing that the delay ladder,
where one is declared; failing that its longest. Only in the last case is a delay shorter than asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from redrive.core.topology.wiring import LadderRetry, RejectRetry, RetryWiring, Tier, TierRetry
from redrive.core.units import Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class ByReject:
    """Reject it: the broker brings it back after `delay_ms`."""

    delay_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTier:
    """Publish a copy to this tier."""

    tier: Tier

    @property
    def delay_ms(self) -> Millis:
        """How long it waits there."""
        return self.tier.delay_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLadder:
    """Publish a copy to the delay ladder, for `delay_ms`."""

    delay_ms: Millis


Way = ByReject | ByTier | ByLadder


def way_back(retry: RetryWiring, delay_ms: Millis, *, with_ladder: bool) -> Way:
    """The way for a retry that is due in `delay_ms`. `with_ladder`: the topology declares the delay ladder."""
    match retry:
        case LadderRetry():
            return ByLadder(delay_ms=delay_ms)
        case RejectRetry(delay_ms=only):
            return ByLadder(delay_ms=delay_ms) if with_ladder and delay_ms > only else ByReject(delay_ms=only)
        case TierRetry(tiers=tiers):
            longer = [tier for tier in tiers if tier.delay_ms >= delay_ms]
            if longer:
                return ByTier(tier=min(longer, key=_delay))
            return ByLadder(delay_ms=delay_ms) if with_ladder else ByTier(tier=max(tiers, key=_delay))
        case _ as never:
            assert_never(never)


def _delay(tier: Tier) -> Millis:
    return tier.delay_ms
