"""What is true after a kill -9: of the server amid commits, of a worker amid its transaction; and who claims what."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.letters.selection import Selection
from redrive.core.ports import ClaimEnd
from redrive.errors import BrokerUnavailableError
from redrive.postgres import Database
from redrive.stores.postgres import PostgresClaimStore, PostgresGroupStore, PostgresLetterStore
from redrive.testing.samples import letter
from redrive.testing.servers.postgres import PostgresNode, ask

ROOT = Path(__file__).resolve().parents[2]


def started(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_of_a_thousand_keys_each_is_claimed_by_one_process(postgres: str) -> None:
    processes = [started("tests.postgres.claimer", postgres, f"w{number}", "1000") for number in range(2)]

    for process in processes:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    taken = [process.communicate(timeout=120)[0].split() for process in processes]

    assert [0, 0] == [process.returncode for process in processes]
    assert sorted(f"k-{number}" for number in range(1_000)) == sorted(taken[0] + taken[1])


async def test_a_worker_killed_in_its_transaction_leaves_nothing_of_it(postgres: str) -> None:
    ask(postgres, "CREATE TABLE effects (name TEXT)")
    claims = PostgresClaimStore(Database(postgres))
    await claims.open()
    with started("tests.postgres.payer", postgres) as payer:
        assert payer.stdout is not None
        assert "written\n" == await asyncio.to_thread(payer.stdout.readline)
        payer.kill()

    while True:
        (verdict,) = await claims.claim([("orders", "k-1")], lease_ms=60_000, owner="next")
        if isinstance(verdict, Acquired):
            break
        await asyncio.sleep(0.05)  # sleep: the lease of the dead one ends on the server's clock

    assert [] == ask(postgres, "SELECT * FROM effects")
    assert [] == ask(postgres, "SELECT * FROM redrive_outbox")
    assert (2, "payer") == (verdict.attempts, verdict.lost.worker if verdict.lost else None)
    async with claims.transaction(ClaimEnd(ref=verdict.ref, state=ClaimState.PROCESSED)) as transaction:
        transaction.execute("INSERT INTO effects VALUES ('paid')")
    assert [("paid",)] == ask(postgres, "SELECT * FROM effects")
    await claims.close()


async def test_a_server_killed_amid_commits_keeps_each_batch_whole_or_not_at_all(
    postgres_alone: PostgresNode,
) -> None:
    size = 7
    with postgres_alone.database() as url:
        database = Database(url)
        letters, groups = PostgresLetterStore(database), PostgresGroupStore(database)
        await letters.open()
        confirmed: list[int] = []

        async def store(lane: int) -> None:
            for number in range(lane * 10_000, lane * 10_000 + 10_000):
                batch = [letter(f"{number}-{part}", fingerprint=f"fp-{part}") for part in range(size)]
                try:
                    await letters.put(batch)
                except BrokerUnavailableError:
                    return
                confirmed.append(number)
                if len(confirmed) == 60:
                    postgres_alone.kill()

        await asyncio.gather(*(store(lane) for lane in range(3)))
        postgres_alone.start()

        found: dict[int, int] = {}
        for (name,) in ask(url, "SELECT id FROM redrive_letter"):
            found[int(name.split("-")[0])] = found.get(int(name.split("-")[0]), 0) + 1
        assert {size} == set(found.values())
        assert set(confirmed) <= set(found)
        stats = await letters.stats(Selection())
        assert size * len(found) == stats.total == sum(stats.by_group.values())
        assert 0 == await groups.recount()
        # What was not confirmed is put again, and nothing comes twice.
        again = [letter(f"{number}-{part}", fingerprint=f"fp-{part}") for number in found for part in range(size)]
        await letters.put(again)
        assert stats.total == (await letters.stats(Selection())).total
        await letters.close()
