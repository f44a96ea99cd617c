"""Campaign: 100 jobs per minute across four worker processes, counted by the first line of the handler.

In no 60 s are there more than 100 starts, however they lie, and while there is work the rate is used to 95 %. A process
that stands still between the hand-over and the handler starts late: what the machine itself was late by is not counted.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from campaign.journal import START
from campaign.redis.limited import QUEUE
from campaign.redis.recovery import Excuses
from campaign.redis.storm import chosen
from campaign.stage import Stage
from redrive import Redrive, Settings
from redrive.testing.servers.redis import RedisNode

APP: Final = "campaign.redis.limited:app"
WORKERS: Final = 4
LEAST_USE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`count` starts per `per_s`, watched for so many seconds."""

    count: int
    per_s: float
    seconds: float


FULL: Final = Scale(count=100, per_s=60, seconds=150)
SMALL: Final = None
"""A window of seconds is for tests/bullmq/test_rates.py, which looks at the server's own count."""


def run(stage: Stage, scale: Scale) -> None:
    """Raises `CampaignError` where there were more starts than the rate allows, or far fewer."""
    with RedisNode(chosen()) as node, Excuses() as excuses:
        stage.say(f"{node.install}, {WORKERS} processes")
        stage.environment |= {
            "REDRIVE_BROKER": node.url,
            "REDRIVE_STORE": f"sqlite:///{stage.file}",
            "CAMPAIGN_RATE": f"{scale.count} per {scale.per_s:g} s",
        }
        asyncio.run(_fill(node.url, stage, count=round(scale.count * (scale.seconds / scale.per_s + 2))))
        for number in range(WORKERS):
            stage.redrive(f"worker-{number}", "work", APP)
        stage.until("the first has started", lambda: bool(stage.journal.of(START, QUEUE)), seconds=60)
        time.sleep(scale.seconds)
        lines = [line for found in stage.journal.of(START, QUEUE).values() for line in found]
        stage.say(f"{len(lines)} starts in {scale.seconds:g} s, by {len({line.pid for line in lines})} processes")
        _check(stage, scale, starts=sorted(line.at for line in lines), excuses=excuses)


async def _fill(url: str, stage: Stage, *, count: int) -> None:
    async with Redrive("campaign", settings=Settings(broker=url, store=f"sqlite:///{stage.file}")) as app:
        await app.publish_many(QUEUE, [f"message-{number}" for number in range(count)])


def _check(stage: Stage, scale: Scale, *, starts: list[float], excuses: Excuses) -> None:
    pairs = list(zip(starts, starts[scale.count :], strict=False))
    stage.check(bool(pairs), "not even two periods' worth of starts")
    most = max(sum(start <= at < start + scale.per_s for at in starts) for start in starts)
    spans = [end - start for start, end in pairs]
    used = scale.per_s / max(spans)
    stage.say(f"at most {most} starts in {scale.per_s:g} s; {scale.count} took {min(spans):.2f} to {max(spans):.2f} s")
    stage.say(f"so {used:.1%} of the rate was used")
    early = [end - start for start, end in pairs if end - start + excuses.within(start, end) < scale.per_s]
    slow = [end - start for start, end in pairs if end - start - excuses.within(start, end) > scale.per_s / LEAST_USE]
    stage.same("more starts than the rate allows", [], early)
    stage.same("the rate was not used", [], slow)
