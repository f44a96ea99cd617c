"""The stepwise ledger keeps the contract of every ledger: over parts in memory, and over a store with transactions."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from redrive.brokers.memory import MemoryBroker
from redrive.core.ports import Clock, Outgoing
from redrive.errors import UnsupportedError
from redrive.runtime.ledger import OrderedLedger
from redrive.sqlite import SqliteFile
from redrive.sqlite.outbox import HOLD_MS
from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
from redrive.stores.sqlite import SqliteClaimStore, SqliteJobStore, SqliteLetterStore
from redrive.testing.contracts import ForwardContract, LedgerContract, LedgerParts
from redrive.testing.samples import hard_message, outgoing


@asynccontextmanager
async def memory_parts(clock: Clock) -> AsyncIterator[LedgerParts]:
    broker, claims, letters = MemoryBroker(clock), MemoryClaimStore(clock), MemoryLetterStore()
    jobs = MemoryJobStore(letters, clock)
    ledger = OrderedLedger(broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock)
    await ledger.open()
    yield LedgerParts(ledger=ledger, broker=broker, claims=claims, letters=letters, jobs=jobs)
    await ledger.close()


class TestOrderedLedger(LedgerContract):
    make = staticmethod(memory_parts)


class TestOrderedLedgerForward(ForwardContract):
    make = staticmethod(memory_parts)


@asynccontextmanager
async def parts_with_a_file(clock: Clock) -> AsyncIterator[LedgerParts]:
    """A broker of its own, and the store of an app on it in a file."""
    with TemporaryDirectory(prefix="redrive-contract-") as folder:
        file = SqliteFile(Path(folder) / "store.db", clock=clock, durability="normal")
        broker, claims, letters = MemoryBroker(clock), SqliteClaimStore(file), SqliteLetterStore(file)
        jobs = SqliteJobStore(file)
        ledger = OrderedLedger(broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock)
        await jobs.open()
        await ledger.open()
        yield LedgerParts(ledger=ledger, broker=broker, claims=claims, letters=letters, jobs=jobs)
        await ledger.close()
        await jobs.close()


def store_of(parts: LedgerParts) -> SqliteFile:
    assert isinstance(parts.claims, SqliteClaimStore)
    return parts.claims._file


class TestOrderedLedgerOverAFile(LedgerContract):
    make = staticmethod(parts_with_a_file)

    async def effects(self, parts: LedgerParts) -> Sequence[Any]:
        with closing(sqlite3.connect(store_of(parts).path)) as connection:
            return [name for (name,) in connection.execute("SELECT name FROM effects")]

    async def commit_and_die(self, parts: LedgerParts, *inside: Outgoing) -> None:
        """A handler's transaction commits; its process is gone before anything is sent or acknowledged."""
        await parts.ledger.publish([outgoing()])
        taken = await self.take_one(parts.ledger)
        async with parts.ledger.transaction(self.end(taken)) as transaction:
            for each in inside:
                transaction.publish(each)

    def next_process(self, parts: LedgerParts, clock: Clock) -> OrderedLedger:
        return OrderedLedger(
            broker=parts.broker, claims=parts.claims, letters=parts.letters, jobs=parts.jobs, clock=clock
        )

    async def test_what_a_dead_process_left_unsent_is_sent_by_the_next_one_whole(
        self, parts: LedgerParts, clock: Clock
    ) -> None:
        sent = hard_message()
        await self.commit_and_die(
            parts, Outgoing(queue="billing", message=sent), outgoing("later", queue="billing", due_at=clock.now() + 10)
        )
        after = self.next_process(parts, clock)

        too_early = await after.send_leftovers(limit=10)
        await self.pass_time(clock, HOLD_MS)
        first = await after.send_leftovers(limit=1)
        second = await after.send_leftovers(limit=10)
        none_left = await after.send_leftovers(limit=10)

        assert [0, 1, 1, 0] == [too_early, first, second, none_left]
        waiting = {copy.id: copy for copy in await parts.broker.peek("billing", limit=10)}
        assert {sent.id: sent, "later": outgoing("later").message} == waiting

    async def test_two_processes_do_not_send_the_same_leftovers(self, parts: LedgerParts, clock: Clock) -> None:
        await self.commit_and_die(parts, *(outgoing(f"next-{number}", queue="billing") for number in range(20)))
        await self.pass_time(clock, HOLD_MS)

        counts = await asyncio.gather(*(self.next_process(parts, clock).send_leftovers(limit=100) for _ in range(5)))

        assert [0, 0, 0, 0, 20] == sorted(counts)
        assert (20, 0, 0) == await self.depth(parts, "billing")

    async def test_what_is_sent_by_its_own_process_leaves_nothing(self, parts: LedgerParts, clock: Clock) -> None:
        await parts.ledger.publish([outgoing()])
        end = self.end(await self.take_one(parts.ledger))
        async with parts.ledger.transaction(end) as transaction:
            transaction.publish(outgoing("next", queue="billing"))
        before = await self.depth(parts, "billing")

        await self.settle_committed(parts, end)
        await self.pass_time(clock, HOLD_MS)

        assert (0, 0, 0) == before
        assert 0 == await self.next_process(parts, clock).send_leftovers(limit=10)
        assert (1, 0, 0) == await self.depth(parts, "billing")

    async def test_a_thread_may_use_the_transaction_too(self, parts: LedgerParts) -> None:
        await parts.ledger.publish([outgoing()])
        end = self.end(await self.take_one(parts.ledger))

        def handle() -> None:
            with parts.ledger.transaction(end) as transaction:
                transaction.execute("CREATE TABLE effects (name TEXT)")
                transaction.execute("INSERT INTO effects VALUES ('paid')")
                transaction.publish(outgoing("next", queue="billing"))

        await asyncio.to_thread(handle)
        await self.settle_committed(parts, end)

        assert ["paid"] == list(await self.effects(parts))
        assert (1, 0, 0) == await self.depth(parts, "billing")

    async def test_a_message_without_a_key_has_no_transaction(self, parts: LedgerParts) -> None:
        await parts.ledger.publish([outgoing(key=None)])
        end = self.end(await self.take_one(parts.ledger))

        with pytest.raises(UnsupportedError, match="no idempotency key"):
            parts.ledger.transaction(end)


class TestOrderedLedgerForwardOverAFile(ForwardContract):
    make = staticmethod(parts_with_a_file)
