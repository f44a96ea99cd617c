"""Any sequence of calls is answered alike by the embedded adapters and by the plainest possible ones in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.brokers.memory import MemoryBroker
from redrive.brokers.sqlite import SqliteBroker
from redrive.core import settlement
from redrive.core.idempotency import Acquired, InProgress
from redrive.core.letters.letter import letter_id
from redrive.core.letters.selection import Selection
from redrive.core.ports import End, Outgoing, Received, Taken
from redrive.core.settlement import Reason, Settlement
from redrive.runtime.ledger import OrderedLedger
from redrive.sqlite import SqliteFile, SqliteLedger, check
from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
from redrive.stores.sqlite import SqliteClaimStore, SqliteJobStore, SqliteLetterStore
from redrive.testing import FakeClock
from redrive.testing.contracts import LedgerParts
from redrive.testing.samples import QUEUE, attempt, letter, outgoing

LEASE_MS = 1_000
FILE = "agree.db"
WHY = Reason(code="TEST", text="drawn")
KEYS = ("a", "b", "c")
EXAMPLES = max(60, settings().max_examples // 2)
"""Half of what the profile asks for: each makes a file."""

DELAYS = st.sampled_from([0, 1, 500, 999, 1_000, 3_000])
SENT = st.tuples(
    st.sampled_from([None, *KEYS]), st.sampled_from([None, 0, 1, 5]), DELAYS, st.booleans(),
    st.sampled_from([None, "d1", "d2"]),
)  # fmt: skip
PUBLISH = st.tuples(st.just("publish"), st.lists(SENT, min_size=1, max_size=3))
TAKE = st.tuples(st.just("take"), st.integers(1, 4), st.sampled_from(["w1", "w2"]))
ENDS = st.tuples(
    st.integers(0, 9), st.sampled_from(["ack", "retry", "rewritten", "requeue", "dead"]), DELAYS, st.booleans()
)
COMMIT = st.tuples(st.just("commit"), st.lists(ENDS, min_size=1, max_size=3))
RENEW = st.tuples(st.just("renew"), st.integers(0, 9))
ADVANCE = st.tuples(st.just("advance"), DELAYS)
STEPS = st.lists(st.one_of(PUBLISH, TAKE, TAKE, COMMIT, COMMIT, RENEW, ADVANCE), max_size=40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One implementation, on its own clock, with the deliveries it handed out."""

    parts: LedgerParts
    clock: FakeClock
    taken: list[Taken]


@given(STEPS)
@settings(max_examples=EXAMPLES)
def test_the_embedded_ledger_and_the_one_in_memory_agree(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(_compare(steps))


async def _compare(steps: list[tuple[Any, ...]]) -> None:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="redrive-agree-"))
        plain, embedded = _in_memory(), _embedded(Path(folder))
        for side in (plain, embedded):
            await side.parts.ledger.open()
            stack.push_async_callback(side.parts.ledger.close)
        for number, step in enumerate(steps):
            answers = [await _carry_out(side, step) for side in (plain, embedded)]
            assert answers[0] == answers[1], f"step {number}: {step}"
            seen = [await _seen(side) for side in (plain, embedded)]
            assert seen[0] == seen[1], f"after step {number}: {step}"
        assert () == check(Path(folder) / FILE).problems


def _in_memory() -> Side:
    clock = FakeClock()
    broker, claims, letters = MemoryBroker(clock), MemoryClaimStore(clock), MemoryLetterStore()
    jobs = MemoryJobStore(letters, clock)
    ledger = OrderedLedger(broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock)
    parts = LedgerParts(ledger=ledger, broker=broker, claims=claims, letters=letters, jobs=jobs)
    return Side(parts=parts, clock=clock, taken=[])


def _embedded(folder: Path) -> Side:
    clock = FakeClock()
    file = SqliteFile(folder / FILE, clock=clock, durability="normal")
    parts = LedgerParts(
        ledger=SqliteLedger(file),
        broker=SqliteBroker(file),
        claims=SqliteClaimStore(file),
        letters=SqliteLetterStore(file),
        jobs=SqliteJobStore(file),
    )
    return Side(parts=parts, clock=clock, taken=[])


async def _carry_out(side: Side, step: tuple[Any, ...]) -> object:
    ledger, clock = side.parts.ledger, side.clock
    match step:
        case ("publish", messages):
            return await ledger.publish([_sent(each, clock.now()) for each in messages])
        case ("take", limit, worker):
            taken = await ledger.take(QUEUE, limit=limit, lease_ms=LEASE_MS, worker=worker, wait_ms=0, claims=True)
            side.taken.extend(taken)
            return [_shown(found) for found in taken]
        case ("commit", ends) if side.taken:
            chosen = {which % len(side.taken): rest for which, *rest in ends}
            taken = [side.taken[place] for place in chosen]
            answers = await ledger.commit(
                [_end(each, rest, clock.now()) for each, rest in zip(taken, chosen.values(), strict=True)]
            )
            # Told so, nobody commits again; repeated unanswered, the stepwise ledger says True once more.
            ended = {id(each) for each, answer in zip(taken, answers, strict=True) if answer}
            side.taken[:] = [each for each in side.taken if id(each) not in ended]
            return answers
        case ("renew", which) if side.taken:
            return ledger.renew([side.taken[which % len(side.taken)]], lease_ms=LEASE_MS)
        case ("advance", ms):
            await clock.advance(ms)
    return None


def _sent(drawn: tuple[str | None, int | None, int, bool, str | None], now: int) -> Outgoing:
    key, priority, delay_ms, once, digest = drawn
    sent = outgoing(key or "loose", key=key, priority=priority, due_at=now + delay_ms if delay_ms else None)
    return replace(sent, once=once, digest=digest)


def _end(taken: Taken, drawn: Sequence[Any], now: int) -> End:
    kind, delay_ms, with_entry = drawn
    due_at = now + delay_ms
    ends: dict[str, Settlement] = {
        "ack": settlement.ACK,
        "retry": settlement.Retry(due_at=due_at, reason=WHY),
        "rewritten": settlement.Retry(due_at=due_at, reason=WHY, body=b"rewritten"),
        "requeue": settlement.Requeue(due_at=due_at, reason=WHY),
        "dead": settlement.DeadLetter(reason=WHY),
    }
    message = taken.received.message
    is_claimed = isinstance(taken.verdict, Acquired)
    cycle = taken.verdict.cycle if isinstance(taken.verdict, Acquired) else 0
    position = "" if is_claimed else taken.received.position
    dead = letter_id(QUEUE, key=message.key, cycle=cycle, message_id=message.id, position=position)
    return End(
        taken=taken,
        settlement=ends[kind],
        entry=attempt() if with_entry and kind in ("retry", "rewritten") else None,
        letter=letter(dead, message=message) if kind == "dead" else None,
    )


def _shown(taken: Taken) -> object:
    verdict = taken.verdict
    told: Sequence[object] = (type(verdict).__name__,)
    if isinstance(verdict, Acquired):
        told = ("Acquired", verdict.attempts, verdict.cycle, verdict.ref.token)
    if isinstance(verdict, InProgress):
        told = ("InProgress", verdict.lease_until)
    return (*told, *_received(taken.received))


def _received(received: Received) -> Sequence[object]:
    # The number of an interrupted start is left out: a broker that knows no claims has only its own count.
    history = [(entry.outcome, entry.worker, entry.at) for entry in received.history]
    message = received.message
    return (
        message.id, message.body, message.original_body, received.starts, received.redelivered, received.lease_until,
        history,
    )  # fmt: skip


async def _seen(side: Side) -> object:
    parts = side.parts
    depths = [depth for depth in await parts.broker.depths() if depth.queue == QUEUE]
    ready = sum(depth.ready for depth in depths)
    waiting = [message.id for message in await parts.broker.peek(QUEUE, limit=ready)] if ready else []
    found = [await parts.claims.get(QUEUE, key) for key in KEYS]
    # The embedded ledger keeps a lost start in the message's history alone; `_received` compares what is told of it.
    records = [None if record is None else replace(record, lost=None) for record in found]
    dead = [
        (key, cycle)
        for key in KEYS
        for cycle in range(4)
        if await parts.letters.get(letter_id(QUEUE, key=key, cycle=cycle, message_id=key, position="")) is not None
    ]
    return depths, waiting, records, dead, (await parts.letters.stats(Selection())).total
