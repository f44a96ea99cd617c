"""The fault campaigns, scaled down: the same code as `make campaign`, with real processes and real `kill -9`.

A failure prints its transcript and its seed. `CAMPAIGN_SEED` repeats a plan.
"""

from __future__ import annotations

import os
import random

import pytest

from campaign.__main__ import CAMPAIGNS, play
from tests.redis import OLD, install_of

SEED = int(os.environ.get("CAMPAIGN_SEED") or random.SystemRandom().randrange(2**32))


# Those on RabbitMQ restart nodes and wait minutes for stragglers: they are `make campaign`'s.
HERE = [name for name, campaign in CAMPAIGNS.items() if campaign.small is not None and not name.startswith("rabbit-")]


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_every_promise_holds_under(name: str) -> None:
    campaign = CAMPAIGNS[name]
    if name.startswith("redis-"):
        install_of(OLD)

    play(campaign.run, campaign.small, seed=SEED)
