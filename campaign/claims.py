"""Campaign: many deliveries of one key at one moment, in several processes. One handler runs."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Final

from campaign.app import app, journal
from campaign.journal import EFFECT, START
from campaign.stage import Stage
from redrive import Redrive
from redrive.core.idempotency import Acquired

PROCESSES: Final = 5
PER_PROCESS: Final = 10
COPIES: Final = PROCESSES * PER_PROCESS
ACQUIRED: Final = "acquired"
STORE_QUEUE: Final = "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many keys are fought over."""

    keys: int
    deliveries: int
    patience_s: float = 120


FULL: Final = Scale(keys=200, deliveries=20)
SMALL: Final = Scale(keys=20, deliveries=3)


def run(stage: Stage, scale: Scale) -> None:
    """Claim in the store itself, then through whole workers. Raises `CampaignError` where two had one key."""
    _claims_in_the_store(stage, scale)
    _deliveries_to_workers(stage, scale)


def _claims_in_the_store(stage: Stage, scale: Scale) -> None:
    at = time.monotonic() + 2
    rivals = [stage.python("rival", "campaign.claims", str(at), str(scale.keys)) for _ in range(PROCESSES)]
    stage.until("all rivals have claimed", lambda: not any(r.is_alive for r in rivals), seconds=scale.patience_s)
    stage.same("exit codes", {0}, {rival.popen.returncode for rival in rivals})
    winners = {key: len(lines) for key, lines in stage.journal.of(ACQUIRED, STORE_QUEUE).items()}
    stage.same("winners by key", {f"key-{number}": 1 for number in range(scale.keys)}, winners)
    stage.say(f"{COPIES} claims at once on each of {scale.keys} keys: one winner each")


def _deliveries_to_workers(stage: Stage, scale: Scale) -> None:
    stage.ask(lambda opened: _publish_copies(opened, scale))
    for number in range(PROCESSES):
        stage.redrive(f"worker-{number}", "work", "campaign.app:app", "--queues", "slow")
    stage.until("every copy is settled", lambda: stage.ask(_left) == 0, seconds=scale.patience_s)
    for kind in (START, EFFECT):
        runs = {name: len(lines) for name, lines in stage.journal.of(kind, "slow").items()}
        stage.same(f"{kind} lines by key", {f"slow-{number}": 1 for number in range(scale.deliveries)}, runs)
    stage.say(f"{COPIES} copies of each of {scale.deliveries} messages in {PROCESSES} workers: one handler each")


async def _publish_copies(opened: Redrive, scale: Scale) -> None:
    messages = [
        ({"name": f"slow-{number}", "work_ms": 300}, {"idempotency_key": f"slow-{number}"})
        for number in range(scale.deliveries)
        for _ in range(COPIES)
    ]
    await opened.publish_many("slow", messages)


async def _left(opened: Redrive) -> int:
    return sum(depth.ready + depth.scheduled + depth.leased for depth in await opened.backend.broker.depths())


async def rival(at: float, keys: int) -> None:
    """One process: at one agreed moment, several tasks claim every key."""
    async with app:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        await asyncio.gather(*(_claim_all(keys, owner=f"rival-{number}") for number in range(PER_PROCESS)))


async def _claim_all(keys: int, *, owner: str) -> None:
    for number in range(keys):
        key = f"key-{number}"
        (verdict,) = await app.backend.claims.claim([(STORE_QUEUE, key)], lease_ms=60_000, owner=owner)
        if isinstance(verdict, Acquired):
            journal().write(ACQUIRED, STORE_QUEUE, key)


if __name__ == "__main__":
    asyncio.run(rival(float(sys.argv[1]), int(sys.argv[2])))
