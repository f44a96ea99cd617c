"""The stores on PostgreSQL keep every contract: on a clock that tests move, and claims on the server's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from redrive.core.audit import RequestStore
from redrive.core.policy.control import ControlStore
from redrive.core.ports import ClaimStore, Clock, LetterStore
from redrive.core.units import Millis
from redrive.postgres import Database
from redrive.runtime.clock import SystemClock
from redrive.stores.postgres import (
    PostgresClaimStore,
    PostgresControlStore,
    PostgresGroupStore,
    PostgresJobStore,
    PostgresLetterStore,
    PostgresRequestStore,
)
from redrive.testing.contracts.claims import ClaimStoreContract
from redrive.testing.contracts.controls import ControlStoreContract
from redrive.testing.contracts.groups import GroupParts, GroupStoreContract
from redrive.testing.contracts.jobs import JobParts, JobStoreContract
from redrive.testing.contracts.letters import LetterStoreContract
from redrive.testing.contracts.requests import RequestStoreContract


class OnPostgres:
    """Stands before a contract suite among a test class's bases."""

    @pytest.fixture(autouse=True)
    def server(self, postgres: str) -> None:
        self.url = postgres

    @asynccontextmanager
    async def database(self, clock: Clock | None) -> AsyncIterator[Database]:
        database = Database(self.url, clock=clock)
        await database.open()
        yield database
        await database.close()


class TestPostgresClaimStore(OnPostgres, ClaimStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        async with self.database(clock) as database:
            yield PostgresClaimStore(database)


class TestPostgresClaimStoreOnTheServersClock(OnPostgres, ClaimStoreContract):
    lease_ms: ClassVar[Millis] = 1_500

    def make_clock(self) -> Clock:
        return SystemClock()

    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        async with self.database(None) as database:
            yield PostgresClaimStore(database)


class TestPostgresRequestStore(OnPostgres, RequestStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[RequestStore]:
        async with self.database(clock) as database:
            yield PostgresRequestStore(database)


class TestPostgresLetterStore(OnPostgres, LetterStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LetterStore]:
        async with self.database(clock) as database:
            yield PostgresLetterStore(database)


class TestPostgresJobStore(OnPostgres, JobStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[JobParts]:
        async with self.database(clock) as database:
            yield JobParts(jobs=PostgresJobStore(database), letters=PostgresLetterStore(database))


class TestPostgresGroupStore(OnPostgres, GroupStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[GroupParts]:
        async with self.database(clock) as database:
            yield GroupParts(groups=PostgresGroupStore(database), letters=PostgresLetterStore(database))


class TestPostgresControlStore(OnPostgres, ControlStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ControlStore]:
        async with self.database(clock) as database:
            yield PostgresControlStore(database)
