"""The fault campaigns, scaled down: the same code as `make campaign`, with real processes and real `kill -9`.

A failure prints its transcript and its seed. `CAMPAIGN_SEED` repeats a plan. In CI it is the same plan every time, so
that a red run can be run again; `make campaign` looks for new ones.
"""

from __future__ import annotations

import os
import random

import pytest

from campaign.__main__ import CAMPAIGNS, play
from tests import rabbit, redis

IN_CI = 20_240_229
SEED = int(
    os.environ.get("CAMPAIGN_SEED")
    or (IN_CI if os.environ.get("CI") == "true" else random.SystemRandom().randrange(2**32))
)


RABBIT = (
    "rabbit-worker-kills",
    "rabbit-orders",
    "rabbit-redrive-store",
    "rabbit-operators",
    "rabbit-redrive-in-place-without-ids",
    "rabbit-crash-orders",
)
"""Of those on RabbitMQ, which start nodes of their own, one of each kind. The others are `make campaign`'s."""

EMBEDDED = [name for name, each in CAMPAIGNS.items() if each.small is not None and not name.startswith("rabbit-")]


@pytest.mark.slow
@pytest.mark.parametrize("name", EMBEDDED)
def test_every_promise_holds_under(name: str) -> None:
    campaign = CAMPAIGNS[name]
    if name.startswith("redis-"):
        redis.install_of(redis.OLD)

    play(campaign.run, campaign.small, seed=SEED)


@pytest.mark.slow
@pytest.mark.parametrize("name", RABBIT)
def test_every_promise_holds_on_rabbitmq_under(name: str) -> None:
    rabbit.install_of(rabbit.OLD)
    campaign = CAMPAIGNS[name]

    play(campaign.run, campaign.small, seed=SEED)
