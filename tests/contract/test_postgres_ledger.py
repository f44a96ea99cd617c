"""The stepwise ledger over PostgreSQL keeps the contract of every ledger, transactions and what they publish too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import psycopg
import pytest

from redrive.brokers.memory import MemoryBroker
from redrive.core.ports import Clock, Outgoing
from redrive.errors import UnsupportedError
from redrive.postgres import Database
from redrive.postgres.transaction import HOLD_MS
from redrive.runtime.ledger import OrderedLedger
from redrive.stores.postgres import PostgresClaimStore, PostgresJobStore, PostgresLetterStore
from redrive.testing.contracts import ForwardContract, LedgerContract, LedgerParts
from redrive.testing.samples import hard_message, outgoing
from redrive.testing.servers.postgres import ask


class OnPostgres:
    """Stands before a contract suite among a test class's bases."""

    @pytest.fixture(autouse=True)
    def server(self, postgres: str) -> None:
        self.url = postgres

    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LedgerParts]:
        """A broker of its own, and the store of an app on it in PostgreSQL."""
        database = Database(self.url, clock=clock)
        broker, claims, letters = MemoryBroker(clock), PostgresClaimStore(database), PostgresLetterStore(database)
        jobs = PostgresJobStore(database)
        ledger = OrderedLedger(broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock)
        await ledger.open()
        yield LedgerParts(ledger=ledger, broker=broker, claims=claims, letters=letters, jobs=jobs)
        await ledger.close()

    async def effects(self, parts: LedgerParts) -> Sequence[Any]:
        return [name for (name,) in ask(self.url, "SELECT name FROM effects")]


class TestOrderedLedgerOverPostgresForward(OnPostgres, ForwardContract):
    pass


class TestOrderedLedgerOverPostgres(OnPostgres, LedgerContract):
    insert: ClassVar[str] = "INSERT INTO effects VALUES (%s)"

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

        assert 20 == sum(counts)
        assert (20, 0, 0) == await self.depth(parts, "billing")

    async def test_a_thread_may_use_the_transaction_too(self, parts: LedgerParts) -> None:
        await parts.ledger.publish([outgoing()])
        end = self.end(await self.take_one(parts.ledger))

        def handle() -> None:
            with parts.ledger.transaction(end) as transaction:
                transaction.execute("CREATE TABLE effects (name TEXT)")
                transaction.execute("INSERT INTO effects VALUES (%s)", ("paid",))
                transaction.publish(outgoing("next", queue="billing"))

        await asyncio.to_thread(handle)
        await self.settle_committed(parts, end)

        assert ["paid"] == list(await self.effects(parts))

    @pytest.mark.parametrize("words", ["COMMIT", "  rollback", "-- why\nEND", "/* x */ BEGIN", "savepoint a"])
    async def test_a_handler_cannot_end_the_transaction_itself(self, parts: LedgerParts, words: str) -> None:
        await self.refused(parts, words, UnsupportedError)

    async def test_a_statement_is_one_statement(self, parts: LedgerParts) -> None:
        await self.refused(parts, "SELECT 1; COMMIT", psycopg.errors.SyntaxError)

    async def refused(self, parts: LedgerParts, words: str, kind: type[Exception]) -> None:
        await parts.ledger.publish([outgoing()])
        end = self.end(await self.take_one(parts.ledger))
        ask(self.url, "CREATE TABLE effects (name TEXT)")

        async def handle() -> None:
            async with parts.ledger.transaction(end) as transaction:
                transaction.execute("INSERT INTO effects VALUES ('half')")
                transaction.execute(words)

        with pytest.raises(kind):
            await handle()

        assert [] == list(await self.effects(parts))
