"""Two processes that want the same: exactly one gets it, each time (cases ID-01, ID-02, ID-03)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redrive.core.idempotency import Acquired, ClaimState, Duplicate, InProgress
from redrive.core.letters.letter import ReviewState
from redrive.core.ports import ClaimEnd, ReviewChange
from redrive.core.redrive import ItemState
from redrive.runtime.clock import SystemClock
from redrive.stores.mongodb.claims import MongoClaimStore
from redrive.stores.mongodb.jobs import MongoJobStore
from redrive.stores.mongodb.letters import MongoLetterStore
from redrive.stores.mongodb.link import Link
from redrive.testing.samples import job, letter
from tests.mongodb.server import database_url

RACERS, KEYS, TRIES = 3, 20, 60


async def test_processes_that_race_for_lost_leases_never_win_one_twice() -> None:
    url = database_url()
    racers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.mongodb.racer", url, f"w{number}", str(KEYS), str(TRIES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(RACERS)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert "ready\n" == racer.stdout.readline()

    told = [racer.communicate("go\n", timeout=300)[0] for racer in _all_started(racers)]

    wins = Counter((key, token) for text in told for key, token in json.loads(text))
    assert RACERS * KEYS * TRIES == sum(wins.values())
    assert {1} == set(wins.values())
    claims = MongoClaimStore(Link(url), clock=SystemClock())
    await claims.open()
    for number in range(KEYS):
        record = await claims.get("q", f"k{number}")
        assert record is not None
        # One whose lease was over before its owner was told counts as a lost start: none is left out.
        assert RACERS * TRIES <= record.token == record.attempts
    await claims.close()


def _all_started(racers: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    return racers


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_duplicate_key_is_judged_by_what_stands_there_now(is_done: bool) -> None:
    """Somebody else's insert comes between the look and the insert (case ID-02)."""
    url = database_url()
    mine, others = (MongoClaimStore(Link(url), clock=SystemClock()) for _ in range(2))
    await mine.open()
    await others.open()
    answer, was_late = mine._records._answer, []

    async def late(ask: Any, *, takes_back: bool) -> Any:
        if type(ask).__name__ == "Insert" and not was_late:
            (theirs,) = await others.claim([("q", "k")], lease_ms=20_000, owner="other")
            assert isinstance(theirs, Acquired)
            if is_done:
                await others.finish([ClaimEnd(ref=theirs.ref, state=ClaimState.PROCESSED)])
            was_late.append(await answer(ask, takes_back=takes_back))
            return was_late[0]
        return await answer(ask, takes_back=takes_back)

    mine._records._answer = late  # type: ignore[method-assign]
    (verdict,) = await mine.claim([("q", "k")], lease_ms=20_000, owner="me")

    record = await others.get("q", "k")
    assert record is not None
    assert isinstance(verdict, Duplicate if is_done else InProgress)
    assert 1 == record.attempts
    assert is_done or "other" == record.owner
    await mine.close()
    await others.close()


@asynccontextmanager
async def many_stores(count: int) -> AsyncIterator[list[tuple[MongoJobStore, MongoLetterStore]]]:
    """Stores of as many processes, each on connections of its own."""
    url, clock = database_url(), SystemClock()
    made = []
    for _ in range(count):
        link = Link(url)
        letters = MongoLetterStore(link, clock=clock)
        await letters.open()
        made.append((MongoJobStore(link, letters, clock=clock), letters))
    yield made
    for _, letters in made:
        await letters.close()


async def test_runners_that_race_for_a_lost_job_never_get_one_token_twice() -> None:
    async with many_stores(4) as stores:
        await stores[0][0].create(job())
        tokens = []
        for _ in range(25):
            taken = await asyncio.gather(*(jobs.acquire("job-1", owner="r", lease_ms=0) for jobs, _ in stores))
            tokens += [each.token for each in taken if each is not None]

    assert len(tokens) >= 25
    assert len(tokens) == len(set(tokens))


async def test_of_jobs_that_stage_the_same_letters_at_one_moment_each_letter_is_in_one() -> None:
    """Case RD-01."""
    names = [f"dl_{number:02}" for number in range(30)]
    async with many_stores(4) as stores:
        await stores[0][1].put([letter(name, died_at=number) for number, name in enumerate(names)])
        running = []
        for number, (jobs, _) in enumerate(stores):
            await jobs.create(job(f"job-{number}"))
            running.append(await jobs.acquire(f"job-{number}", owner="r", lease_ms=600_000))

        async def stage(jobs: MongoJobStore, mine: Any) -> list[str]:
            while not mine.is_staged:
                mine = await jobs.stage(mine, limit=5)
            pending = await jobs.items(mine.id, state=ItemState.PENDING, limit=100)
            return [item.letter_id for item in pending]

        staged = await asyncio.gather(*(stage(jobs, mine) for (jobs, _), mine in zip(stores, running, strict=True)))

    assert names == sorted(name for each in staged for name in each)


async def test_of_people_who_move_a_letter_at_one_moment_one_does_and_the_audit_names_him() -> None:
    async with many_stores(4) as stores:
        for number in range(15):
            name = f"dl_{number}"
            await stores[0][1].put([letter(name)])
            changes = [
                ReviewChange(letter_id=name, to=ReviewState.CLOSED, actor=f"p{place}", at=1)
                for place in range(len(stores))
            ]
            told = await asyncio.gather(
                *(letters.review([change]) for (_, letters), change in zip(stores, changes, strict=True))
            )

            winners = [place for place, (why,) in enumerate(told) if why is None]
            found = await stores[1][1].get(name)
            assert found is not None
            assert 1 == len(winners)
            assert [f"p{winners[0]}"] * 2 == [entry.actor for entry in found[1]]


async def test_a_letter_that_a_job_takes_while_it_is_pruned_is_in_hand_or_gone_never_both() -> None:
    from redrive.core.letters.selection import Selection

    async with many_stores(2) as ((jobs, letters), (_, pruning)):
        for number in range(15):
            name = f"dl_{number}"
            await letters.put([letter(name)])
            await jobs.create(job(f"job-{number}", selection=Selection(ids=(name,))))
            mine = await jobs.acquire(f"job-{number}", owner="r", lease_ms=600_000)
            assert mine is not None

            _, gone = await asyncio.gather(
                jobs.stage(mine, limit=5), pruning.prune(now=1, limit=5, selection=Selection(ids=(name,)))
            )

            pending = await jobs.items(mine.id, state=ItemState.PENDING, limit=5)
            assert (await letters.get(name) is None) == (gone == 1)
            assert not (pending and gone)
