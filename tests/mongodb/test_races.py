"""Two processes that want the same: exactly one gets it, each time (cases ID-01, ID-02, ID-03)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

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
