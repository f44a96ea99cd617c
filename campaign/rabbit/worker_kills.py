"""Campaign: a worker with default settings on RabbitMQ, killed (kill -9) five times in the middle of its work.

Nothing is lost and nothing is stuck: what a killed worker had in hand is processed by the next one at once, not when a
lease ends. Effects in the transaction happened once; outside of it only messages in hand at a kill repeat, and each
repeat was announced as an interrupted start.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from campaign.journal import EFFECT, START
from campaign.kills import repeats_are_explained
from campaign.rabbit.ground import Ground, ground
from campaign.stage import Stage

QUEUE: Final = "orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`stuck_s`: how long after the last kill the last message may be processed."""

    messages: int
    kills: int
    stuck_s: float
    patience_s: float = 180


FULL: Final = Scale(messages=2_000, kills=5, stuck_s=10)
# Two busy processors of a test machine: here it is enough that no lease (a minute) is waited for.
SMALL: Final = Scale(messages=600, kills=3, stuck_s=45)


def run(stage: Stage, scale: Scale) -> None:
    """One worker at a time. Raises `CampaignError` where a kill cost more than it may."""
    stage.environment["CAMPAIGN_ORDERS"] = "sound"
    with ground(stage, QUEUE, defaults=True, through_proxy=False) as field:
        field.start_sender(scale.messages, 0)
        field.until("all is sent", lambda: len(field.confirmed) == scale.messages, seconds=scale.patience_s)
        field.start_worker(0)
        for number in range(1, scale.kills + 1):
            share = scale.messages * number // (scale.kills + 1)
            field.until(f"{share} are processed", lambda least=share: _done(field) >= least, seconds=scale.patience_s)
            stage.kill(field.workers[0])
            field.start_worker(0)
        killed_at = time.monotonic()
        field.until("every effect has happened", lambda: not field.missing(), seconds=scale.patience_s)
        last = max(lines[-1].at for lines in stage.journal.of(EFFECT, QUEUE).values())
        _check(field, scale, took_s=last - killed_at)


def _done(field: Ground) -> int:
    return len(field.stage.journal.of(EFFECT, QUEUE))


def _check(field: Ground, scale: Scale, *, took_s: float) -> None:
    stage = field.stage
    stage.check(took_s <= scale.stuck_s, f"the last effect came {took_s:.1f} s after the last kill")
    effects = stage.effects()
    stage.same("effects in a transaction", dict.fromkeys(field.expected(), 1), effects)
    journal = stage.journal
    repeats_are_explained(stage, QUEUE, effects=journal.of(EFFECT, QUEUE), starts=journal.of(START, QUEUE))
    stage.same("dead letters", 0, field.open_letters())
    stage.same("processes killed", scale.kills, len(stage.killed))
    stage.say(f"{scale.messages} messages, {scale.kills} kills: 0 lost, 0 stuck {took_s:.1f} s after the last kill")
