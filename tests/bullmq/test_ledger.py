"""The stepwise ledger over Redis keeps the contract of every ledger: broker and claims there, letters in a file."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from redrive.brokers.bullmq.broker import BullBroker
from redrive.core.idempotency import ClaimState
from redrive.core.ports import Clock
from redrive.runtime.ledger import OrderedLedger
from redrive.sqlite import SqliteFile
from redrive.stores.redis.claims import RedisClaimStore
from redrive.stores.sqlite import SqliteJobStore, SqliteLetterStore
from redrive.testing.contracts import ForwardContract, LedgerContract, LedgerParts
from tests.bullmq.crew import QUEUE, make
from tests.conftest import PATIENCE
from tests.redis import OnRedis, Redis

ROOT = Path(__file__).resolve().parents[2]


class LedgerOnRedis(OnRedis):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LedgerParts]:
        with TemporaryDirectory(prefix="redrive-contract-") as folder:
            file = SqliteFile(Path(folder) / "store.db", clock=clock, durability="normal")
            broker, claims = BullBroker(self.url, clock=clock), RedisClaimStore(self.url, clock=clock)
            letters, jobs = SqliteLetterStore(file), SqliteJobStore(file)
            ledger = OrderedLedger(broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock)
            await jobs.open()
            await ledger.open()
            yield LedgerParts(ledger=ledger, broker=broker, claims=claims, letters=letters, jobs=jobs)
            await ledger.close()
            await jobs.close()


class TestLedger(LedgerOnRedis, LedgerContract):
    pass


class TestLedgerForward(LedgerOnRedis, ForwardContract):
    pass


async def test_a_worker_killed_between_taking_back_a_lost_claim_and_the_next_one_holds_up_nobody(
    redis: Redis, tmp_path: Path
) -> None:
    journal, store = tmp_path / "journal.jsonl", str(tmp_path / "letters.db")
    async with make(redis.url, store, journal) as app:
        await app.publish(QUEUE, {"n": 1}, idempotency_key="k-1")
        command = [sys.executable, "-m", "tests.bullmq.lost_claim", redis.url, store, str(journal)]
        killed = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, timeout=PATIENCE.total_seconds())
        left = await app.backend.claims.get(QUEUE, "k-1")

        worker = app.worker()
        working = asyncio.ensure_future(worker.run())
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while (found := await app.backend.claims.get(QUEUE, "k-1")) is None or found.state is not PROCESSED:
                await asyncio.sleep(0.05)  # sleep: the fleet finds the dead by the server's clock
        worker.stop()
        await working

    # The process had the message in hand for the second time; of its claim nothing was left, and nothing was charged.
    assert -signal.SIGKILL == killed.returncode
    assert left is not None
    assert (ClaimState.RECEIVED, 0, None, None) == (left.state, left.attempts, left.owner, left.lease_until)
    lines = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    assert [1] == [line["end"] for line in lines if "end" in line]
    # The claim's own count wins: this was its first start.
    assert 1 == found.attempts


PROCESSED = ClaimState.PROCESSED
