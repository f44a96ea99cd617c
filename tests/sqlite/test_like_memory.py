"""The file and the memory ledger told the same story: they give the same answers, step by step."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from redrive.brokers.memory import MemoryBroker
from redrive.core import settlement
from redrive.core.idempotency import Acquired
from redrive.core.letters.letter import letter_id
from redrive.core.ports import End, Ledger, Outgoing, Taken
from redrive.core.settlement import Settlement
from redrive.runtime.ledger import OrderedLedger
from redrive.sqlite import SqliteFile, SqliteLedger, check
from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
from redrive.testing import FakeClock
from redrive.testing.samples import QUEUE, attempt, letter, message
from tests.sqlite.steps import WHY

STORIES = 60
STEPS = 40
LEASE_MS = 1_000


@dataclass(slots=True)
class Side:
    """One ledger, and what it has in hand by the order of taking."""

    ledger: Ledger
    taken: list[Taken] = field(default_factory=list)

    async def publish(self, batch: list[Outgoing]) -> object:
        return await self.ledger.publish(batch)

    async def take(self, limit: int) -> object:
        found = await self.ledger.take(QUEUE, limit=limit, lease_ms=LEASE_MS, worker="w", wait_ms=0, claims=True)
        self.taken += found
        return [_seen(each) for each in found]

    async def commit(self, choices: list[tuple[int, Settlement]]) -> object:
        """What ended is not in hand any more: told of it again, a ledger of several steps may say it did so."""
        answers = await self.ledger.commit([_end(self.taken[place], end) for place, end in choices])
        ended = {place for (place, _), answer in zip(choices, answers, strict=True) if answer}
        self.taken = [each for place, each in enumerate(self.taken) if place not in ended]
        return answers

    def renew(self, places: list[int]) -> object:
        """Only without a claim: where one of the two is lost, a ledger of several steps has renewed the other."""
        chosen = [self.taken[place] for place in places if self.taken[place].verdict is None]
        return self.ledger.renew(chosen, lease_ms=LEASE_MS)


def _seen(each: Taken) -> tuple[Any, ...]:
    received, verdict = each.received, each.verdict
    counts = (verdict.attempts, verdict.cycle, verdict.ref.token) if isinstance(verdict, Acquired) else ()
    # Not the number of a lost start: the file takes it from the claim, a broker alone knows only its own starts.
    history = [entry.outcome for entry in received.history]
    return (
        received.message.id, received.message.body, received.message.original_body, received.starts,
        received.redelivered, type(verdict).__name__, counts, history,
    )  # fmt: skip


def _end(taken: Taken, end: Settlement) -> End:
    if not isinstance(end, settlement.DeadLetter):
        return End(taken=taken, settlement=end, entry=None if end is settlement.ACK else attempt(1))
    name = letter_id(
        QUEUE,
        key=taken.received.message.key if isinstance(taken.verdict, Acquired) else None,
        cycle=taken.verdict.cycle if isinstance(taken.verdict, Acquired) else 0,
        message_id=taken.received.message.id,
        position=taken.received.position,
    )
    return End(taken=taken, settlement=end, letter=letter(name, message=taken.received.message, dead_letter_queue=""))


def _settlement(chance: random.Random, now: int) -> Settlement:
    due_at = now + chance.choice((-5, 0, 300, 2_000))
    return chance.choice(
        (
            settlement.ACK,
            settlement.Retry(due_at=due_at, reason=WHY, body=chance.choice((None, b"rewritten"))),
            settlement.Requeue(due_at=due_at, reason=WHY),
            settlement.DeadLetter(reason=WHY),
        )
    )


def _batch(chance: random.Random, now: int) -> list[Outgoing]:
    return [
        Outgoing(
            queue=QUEUE,
            message=message(
                f"m-{chance.randrange(10_000)}",
                key=chance.choice((None, "a", "b", "c", "d")),
                priority=chance.choice((None, None, 0, 1, 5)),
            ),
            due_at=chance.choice((None, None, now - 10, now + 500)),
            once=chance.random() < 0.3,
        )
        for _ in range(chance.randrange(1, 5))
    ]


async def step(chance: random.Random, sides: list[Side], clock: FakeClock) -> list[object]:
    """One random step on every side; their answers."""
    now, in_hand = clock.now(), len(sides[0].taken)
    what = chance.choice(("publish", "take", "take", "commit", "commit", "renew", "pass"))
    if what == "publish":
        batch = _batch(chance, now)
        return [await side.publish(batch) for side in sides]
    if what == "take":
        limit = chance.randrange(1, 6)
        return [await side.take(limit) for side in sides]
    if what == "commit" and in_hand:
        places = chance.sample(range(in_hand), min(in_hand, chance.randrange(1, 4)))
        choices = [(place, _settlement(chance, now)) for place in places]
        return [await side.commit(choices) for side in sides]
    if what == "renew" and in_hand:
        places = chance.sample(range(in_hand), min(in_hand, 3))
        return [side.renew(places) for side in sides]
    await clock.advance(chance.choice((1, 300, 1_001, 5_000)))
    return [None] * len(sides)


@pytest.mark.parametrize("part", range(4))
async def test_any_story_ends_the_same_on_the_file_and_in_memory(part: int) -> None:
    for seed in range(part, STORIES, 4):
        chance, clock = random.Random(seed), FakeClock()
        letters = MemoryLetterStore()
        memory = OrderedLedger(
            broker=MemoryBroker(clock), claims=MemoryClaimStore(clock), letters=letters,
            jobs=MemoryJobStore(letters, clock), clock=clock,
        )  # fmt: skip
        with TemporaryDirectory(prefix="redrive-story-") as folder:
            path = Path(folder) / "story.db"
            file = SqliteLedger(SqliteFile(path, clock=clock))
            await memory.open()
            await file.open()
            sides = [Side(file), Side(memory)]
            for number in range(STEPS):
                ours, theirs = await step(chance, sides, clock)
                assert theirs == ours, f"seed {seed}, step {number}"
            assert () == check(path).problems
            await file.close()
            await memory.close()
