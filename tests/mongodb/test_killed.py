"""Kill -9 of the process, and of the server under it: what was told is true, and what was not is whole or not there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.core.idempotency import Acquired, ClaimState, InProgress
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.ports import ReviewChange
from redrive.errors import BrokerUnavailableError, RedriveError
from redrive.runtime.clock import SystemClock
from redrive.stores.mongodb.claims import MongoClaimStore
from redrive.stores.mongodb.letters import MongoLetterStore
from redrive.stores.mongodb.link import Link
from redrive.testing.samples import letter
from redrive.testing.servers.mongodb import MongoNode
from tests.mongodb.dier import LARGE
from tests.mongodb.server import database_url, ferretdb

KILLS = 4


@pytest.fixture
def node() -> Iterator[MongoNode]:
    """A server that is this test's only."""
    with MongoNode(ferretdb()) as node:
        yield node


def told(journal: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"stored": set(), "closed": set(), "ended": set()}
    for line in journal.read_text("utf-8").splitlines() if journal.exists() else []:
        for kind, name in json.loads(line).items():
            found[kind].add(name)
    return found


def until_more(journal: Path, before: int) -> None:
    deadline = time.monotonic() + 60
    while len(journal.read_text("utf-8").splitlines() if journal.exists() else []) < before + 20:
        assert time.monotonic() < deadline
        time.sleep(0.001 * (before % 7))  # sleep: another process, killed at another place each time


@pytest.mark.parametrize("victim", ["process", "server"])
async def test_what_was_told_is_true_after_every_kill(node: MongoNode, tmp_path: Path, victim: str) -> None:
    url, journal = database_url(node.url), tmp_path / "journal"
    for _ in range(KILLS):
        dier = subprocess.Popen(
            [sys.executable, "-m", "tests.mongodb.dier", url, str(journal)], stderr=subprocess.DEVNULL
        )
        until_more(journal, sum(map(len, told(journal).values())))
        if victim == "server":
            node.kill()
        dier.kill()
        dier.wait()
        node.start()

    link, clock = Link(url), SystemClock()
    claims, letters = MongoClaimStore(link, clock=clock), MongoLetterStore(link, clock=clock)
    await claims.open()
    await letters.open()
    facts = told(journal)
    listed, cursor = [], None
    while True:
        page = await letters.find(Selection(), limit=50, cursor=cursor)
        listed += [each.id for each in page.letters]
        cursor = page.cursor
        if cursor is None:
            break

    assert len(listed) == len(set(listed))
    assert facts["stored"] <= set(listed)
    for name in listed:
        found = await letters.get(name)
        assert found is not None
        assert (LARGE if int(name[3:]) % 10 == 0 else b"x") == found[0].message.body
        # State and audit are one insert: never one without the other.
        assert {ReviewState.PENDING: [], ReviewState.CLOSED: ["reviewed", "closed"]}[found[0].state] == [
            entry.action for entry in found[1]
        ]
        assert name not in facts["closed"] or found[0].state is ReviewState.CLOSED
        record = await claims.get("q", name)
        assert record is not None
        assert name not in facts["ended"] or record.state is ClaimState.DEAD_LETTERED
    await letters.close()
    await claims.close()


async def test_an_outage_is_told_as_one_and_work_goes_on_after_it(node: MongoNode) -> None:
    url = database_url(node.url) + "?serverSelectionTimeoutMS=300"
    link, clock = Link(url), SystemClock()
    claims, letters = MongoClaimStore(link, clock=clock), MongoLetterStore(link, clock=clock)
    await claims.open()
    await letters.open()
    (kept,) = await claims.claim([("q", "kept")], lease_ms=600_000, owner="w1")
    assert isinstance(kept, Acquired)
    await letters.put([letter()])
    assert [True] == claims.renew([kept.ref], lease_ms=600_000)

    node.kill()
    for call in (
        claims.claim([("q", "k")], lease_ms=600_000, owner="w1"),
        letters.put([letter("other")]),
        letters.find(Selection(), limit=1),
        letters.review([ReviewChange(letter_id="dl_1", to=ReviewState.REVIEWED, actor="ann", at=1)]),
    ):
        with pytest.raises(BrokerUnavailableError, match=r"MongoDB at 127\.0\.0\.1"):
            await call
    with pytest.raises(BrokerUnavailableError):
        claims.renew([kept.ref], lease_ms=600_000)
    node.start()

    assert [True] == claims.renew([kept.ref], lease_ms=600_000)
    (again,) = await claims.claim([("q", "kept")], lease_ms=600_000, owner="w2")
    assert isinstance(again, InProgress)
    (fresh,) = await claims.claim([("q", "k")], lease_ms=600_000, owner="w1")
    assert isinstance(fresh, Acquired)
    assert ["dl_1"] == [each.id for each in (await letters.find(Selection(), limit=9)).letters]
    await letters.close()
    await claims.close()


async def test_a_claim_whose_answer_was_lost_is_taken_back_by_the_next_call(node: MongoNode) -> None:
    class Deaf(MongoClaimStore):
        """Loses the answer to its first insert, which the server has carried out."""

    claims = Deaf(Link(database_url(node.url)), clock=SystemClock())
    await claims.open()
    records = claims._records
    answer, lost = records._answer, []

    async def deaf(ask: object, *, takes_back: bool) -> object:
        found = await answer(ask, takes_back=takes_back)  # type: ignore[arg-type]
        if type(ask).__name__ == "Insert" and not lost:
            lost.append(ask)
            records._remember([_exact(each) for each in ask.documents])  # type: ignore[attr-defined]
            raise BrokerUnavailableError("the answer was lost")
        return found

    def _exact(document: dict[str, object]) -> dict[str, object]:
        return {"_id": document["_id"], "redrive.mark": document["redrive"]["mark"]}  # type: ignore[index]

    records._answer = deaf  # type: ignore[method-assign]
    with pytest.raises(RedriveError, match="lost"):
        await claims.claim([("q", "k")], lease_ms=600_000, owner="w1")
    assert await claims.get("q", "k") is not None

    (verdict,) = await claims.claim([("q", "k")], lease_ms=600_000, owner="w1")

    assert isinstance(verdict, Acquired)
    assert 1 == verdict.attempts
    await claims.close()
