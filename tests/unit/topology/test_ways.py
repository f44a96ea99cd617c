"""Which way a message goes back when its wiring has only some delays."""

from __future__ import annotations

import pytest

from redrive.core.topology.ways import ByLadder, ByReject, ByTier, way_back
from redrive.core.topology.wiring import LadderRetry, RejectRetry, Tier, TierRetry

TIERS = tuple(Tier(delay_ms=delay, routing_key=f"user.{delay}") for delay in (30_000, 300_000, 1_800_000))
TIERED = TierRetry(exchange="retry", tiers=TIERS)


@pytest.mark.parametrize(
    ("asked_ms", "taken_ms"),
    [(0, 30_000), (30_000, 30_000), (30_001, 300_000), (120_000, 300_000), (1_800_000, 1_800_000)],
)
@pytest.mark.parametrize("with_ladder", [True, False])
def test_tiers_take_the_next_longer_one(asked_ms: int, taken_ms: int, with_ladder: bool) -> None:
    way = way_back(TIERED, asked_ms, with_ladder=with_ladder)

    assert isinstance(way, ByTier)
    assert taken_ms == way.delay_ms
    assert f"user.{taken_ms}" == way.tier.routing_key


def test_beyond_the_longest_tier_comes_the_ladder_and_without_one_the_longest() -> None:
    assert ByLadder(delay_ms=1_800_001) == way_back(TIERED, 1_800_001, with_ladder=True)
    assert ByTier(tier=TIERS[-1]) == way_back(TIERED, 1_800_001, with_ladder=False)


def test_tiers_need_not_be_in_order() -> None:
    shuffled = TierRetry(exchange="retry", tiers=(TIERS[2], TIERS[0], TIERS[1]))

    assert ByTier(tier=TIERS[1]) == way_back(shuffled, 60_000, with_ladder=False)


def test_a_rejected_message_comes_back_after_the_one_delay_there_is() -> None:
    one = RejectRetry(delay_ms=5_000)

    assert [ByReject(delay_ms=5_000)] * 3 == [way_back(one, asked, with_ladder=False) for asked in (0, 5_000, 60_000)]
    assert ByReject(delay_ms=5_000) == way_back(one, 5_000, with_ladder=True)
    assert ByLadder(delay_ms=5_001) == way_back(one, 5_001, with_ladder=True)


def test_the_ladder_has_every_delay() -> None:
    assert ByLadder(delay_ms=17) == way_back(LadderRetry(), 17, with_ladder=False)
