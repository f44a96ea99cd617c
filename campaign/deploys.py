"""Campaign: twenty deploys. Each is a SIGTERM in the middle of work; none may cost a message an attempt.

Handlers take from 5 ms to longer than the grace period, so some finish while the worker drains and some are handed
back.
"""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass
from typing import Final

from campaign.app import Order
from campaign.journal import EFFECT, START
from campaign.kills import open_letters
from campaign.stage import Process, Stage
from redrive import Redrive

QUEUE: Final = "deploys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many messages and deploys; `stop_s` is the longest a deploy may take (grace is 0.5 s)."""

    messages: int
    deploys: int
    stop_s: float = 15
    patience_s: float = 180


FULL: Final = Scale(messages=3_000, deploys=20)
SMALL: Final = Scale(messages=450, deploys=4, patience_s=60)


def run(stage: Stage, scale: Scale) -> None:
    """Deploy again and again while messages are handled. Raises `CampaignError` where a deploy cost something."""
    stage.ask(lambda app: _publish(app, stage, scale))
    worker = _worker(stage)
    for _ in range(scale.deploys):
        _until_it_works(stage, worker, scale)
        stage.pause(0.1, 0.8)
        _stop(stage, worker, scale)
        worker = _worker(stage)
    stage.until(
        "all are handled", lambda: len(stage.journal.of(EFFECT, QUEUE)) == scale.messages, seconds=scale.patience_s
    )
    _stop(stage, worker, scale)
    _check(stage, scale)


def _worker(stage: Stage) -> Process:
    return stage.redrive("worker", "work", "campaign.app:app", "--queues", QUEUE)


def _until_it_works(stage: Stage, worker: Process, scale: Scale) -> None:
    stage.until("the worker works", lambda: _starts_of(stage, worker) > 0, seconds=scale.patience_s)


def _stop(stage: Stage, worker: Process, scale: Scale) -> None:
    worker.popen.send_signal(signal.SIGTERM)
    stage.until("the worker ended", lambda: not worker.is_alive, seconds=scale.stop_s)
    stage.same("exit code after SIGTERM", 0, worker.popen.returncode)


def _starts_of(stage: Stage, worker: Process) -> int:
    return sum(line.pid == worker.pid for lines in stage.journal.of(START, QUEUE).values() for line in lines)


async def _publish(app: Redrive, stage: Stage, scale: Scale) -> None:
    orders = [
        Order(name=f"{QUEUE}-{number:05d}", work_ms=stage.rng.choice([5, 20, 100, 400, 900]))
        for number in range(scale.messages)
    ]
    await app.publish_many(QUEUE, [(asdict(order), {"message_id": order.name}) for order in orders])


def _check(stage: Stage, scale: Scale) -> None:
    starts, effects = stage.journal.of(START, QUEUE), stage.journal.of(EFFECT, QUEUE)
    counted = {line.attempt for lines in starts.values() for line in lines}
    stage.same("attempt numbers seen", {1}, counted)
    stage.same(
        "effects that happened more than once", {}, {n: len(found) for n, found in effects.items() if len(found) > 1}
    )
    stage.same("dead letters", 0, stage.ask(open_letters))
    again = sum(len(lines) - 1 for lines in starts.values())
    stage.say(f"{scale.deploys} deploys, {scale.messages} messages, {again} handed back: no attempt was charged")
