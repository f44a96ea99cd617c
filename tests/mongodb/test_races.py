"""Two processes that want the same: exactly one gets it, each time (cases ID-01, ID-02, ID-03)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from redrive.core.idempotency import Acquired, ClaimState, Duplicate, InProgress
from redrive.core.ports import ClaimEnd
from redrive.runtime.clock import SystemClock
from redrive.stores.mongodb.claims import MongoClaimStore
from redrive.stores.mongodb.link import Link
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
