"""One key, many claims: from several processes, over time, and after its worker died."""

from __future__ import annotations

import os
import signal
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from redrive.core import settlement
from redrive.core.idempotency import Acquired, ClaimState, Duplicate, InProgress, Verdict
from redrive.core.letters.redriven import redriven_message
from redrive.core.letters.selection import Selection
from redrive.core.ports import ClaimEnd, End, Forward, Outgoing, Taken
from redrive.core.redrive import JobState
from redrive.sqlite import SqliteFile, SqliteLedger
from redrive.stores.sqlite import SqliteClaimStore, SqliteJobStore, SqliteLetterStore
from redrive.testing import FakeClock
from redrive.testing.samples import QUEUE, job, letter
from tests.sqlite.steps import WHY, end_all, end_child, many, read_line, rows, run, start_child, take, tell

PROCESSES = 5
CLAIMS_EACH = 10
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000


@pytest.fixture
def claims(file: SqliteFile) -> SqliteClaimStore:
    return SqliteClaimStore(file)


async def claim(claims: SqliteClaimStore, key: str = "m-1", *, lease_ms: int = 30 * SECOND) -> Verdict:
    (verdict,) = await claims.claim([(QUEUE, key)], lease_ms=lease_ms, owner="w1")
    return verdict


def test_of_fifty_claims_from_five_processes_one_runs_and_the_rest_lose_nothing(path: Path) -> None:
    """Case ID-01."""
    children = [start_child(path, "claim", str(CLAIMS_EACH)) for _ in range(PROCESSES)]
    assert {"ready"} == {read_line(child) for child in children}

    for child in children:
        tell(child)
    first = [read_line(child).split(",") for child in children]
    (winner,) = [child for child, verdicts in zip(children, first, strict=True) if "Acquired" in verdicts]
    tell(winner, "finish")
    assert "[True]" == read_line(winner)
    for child in children:
        tell(child)
    second = [read_line(child).split(",") for child in children]
    for child in children:
        end_child(child)

    assert {"Acquired": 1, "InProgress": 49} == Counter(chain(*first))
    assert {"Duplicate": 50} == Counter(chain(*second))
    assert [(1,)] == rows(path, "SELECT attempts FROM redrive_claim")


async def test_a_crash_after_the_claim_blocks_the_key_only_until_the_lease_ends(
    claims: SqliteClaimStore, clock: FakeClock
) -> None:
    """Case ID-03."""
    await claim(claims)
    await clock.advance(29 * SECOND)
    at_29_s = await claim(claims)
    await clock.advance(2 * SECOND)
    at_31_s = await claim(claims)
    await clock.advance(9 * SECOND)
    assert isinstance(at_31_s, Acquired)
    await claims.finish([ClaimEnd(ref=at_31_s.ref, state=ClaimState.PROCESSED, expires_at=clock.now() + 24 * HOUR)])
    await clock.advance(23 * HOUR - 40 * SECOND)
    at_23_h = await claim(claims)
    await clock.advance(HOUR + 41 * SECOND)
    at_24_h_41_s = await claim(claims)

    assert isinstance(at_29_s, InProgress)
    assert 2 == at_31_s.attempts
    assert isinstance(at_23_h, Duplicate)
    assert isinstance(at_24_h_41_s, Acquired)
    assert (1, 0) == (at_24_h_41_s.attempts, at_24_h_41_s.cycle)


async def test_an_expired_record_is_as_good_as_none_and_its_time_is_a_whole_number(
    path: Path, claims: SqliteClaimStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case ID-09, with the cleaner off and after it ran."""
    monkeypatch.setenv("TZ", "America/Phoenix")
    for key, expires_at in (("old", clock.now() - SECOND), ("new", clock.now() + HOUR)):
        verdict = await claim(claims, key)
        assert isinstance(verdict, Acquired)
        await claims.finish([ClaimEnd(ref=verdict.ref, state=ClaimState.PROCESSED, expires_at=expires_at)])

    assert [("integer",), ("integer",)] == rows(path, "SELECT typeof(expires_at) FROM redrive_claim")
    assert isinstance(await claim(claims, "old"), Acquired)
    assert isinstance(await claim(claims, "new"), Duplicate)
    await claims.prune(limit=10)
    assert isinstance(await claim(claims, "new"), Duplicate)


async def test_a_retry_a_redrive_and_a_new_send_do_not_look_like_duplicates(
    file: SqliteFile, ledger: SqliteLedger, clock: FakeClock
) -> None:
    """Case ID-05."""
    letters, jobs = SqliteLetterStore(file), SqliteJobStore(file)
    await ledger.publish(many(3))
    retried, redriven, sent_again = await take(ledger)
    reason = settlement.DeadLetter(reason=WHY)
    await ledger.commit(
        [
            End(taken=retried, settlement=settlement.Retry(due_at=clock.now(), reason=WHY)),
            End(taken=redriven, settlement=reason, letter=letter("dl_1", message=redriven.received.message)),
            End(taken=sent_again, settlement=reason, letter=letter("dl_2", message=sent_again.received.message)),
        ]
    )

    await jobs.create(job("job-1", selection=Selection(ids=("dl_1",)), created_at=clock.now()))
    running = await jobs.acquire("job-1", owner="w1", lease_ms=HOUR)
    assert running is not None
    assert running.state is JobState.RUNNING
    await jobs.stage(running, limit=10)
    (item,) = await jobs.items("job-1", state="pending", limit=10)
    found = await letters.get("dl_1")
    assert found is not None
    outgoing = Outgoing(queue=QUEUE, message=redriven_message(found[0], running, now=clock.now()))
    assert [None] == await ledger.forward(running, [Forward(item=item, outgoing=outgoing, actor="ann", at=clock.now())])
    await ledger.publish(many(1, start=2))

    again = await take(ledger)
    verdicts = {each.received.message.id: each.verdict for each in again}
    assert all(isinstance(verdict, Acquired) for verdict in verdicts.values())
    assert {"m-0": 2, "m-1": 1, "m-2": 1} == {
        name: verdict.attempts for name, verdict in verdicts.items() if isinstance(verdict, Acquired)
    }
    assert [True] * 3 == await end_all(ledger, again)
    await ledger.publish(many(3))
    assert [Duplicate()] * 3 == [each.verdict for each in await take(ledger)]


async def test_the_work_of_a_dead_or_frozen_worker_is_found_while_another_runs(
    path: Path, live_ledger: SqliteLedger, live_file: SqliteFile
) -> None:
    """Case SD-06, with a lease of two seconds."""
    await live_ledger.publish(many(2))
    dead, frozen = start_child(path, "hold"), start_child(path, "hold")
    assert ["ready", "1"] == [read_line(dead), read_line(dead)]
    assert ["ready", "1"] == [read_line(frozen), read_line(frozen)]
    frozen.send_signal(signal.SIGSTOP)
    os.kill(dead.pid, signal.SIGKILL)

    found: list[Taken] = []
    while len(found) < 2:
        found += await take(live_ledger, worker="w2", wait_ms=20_000)
    end_child(frozen)
    end_child(dead)

    assert {"m-0", "m-1"} == {each.received.message.id for each in found}
    assert [2, 2] == [each.received.starts for each in found]
    assert [2, 2] == [each.verdict.attempts for each in found if isinstance(each.verdict, Acquired)]
    assert [["frozen"], ["frozen"]] == [[entry.worker for entry in each.received.history] for each in found]
    assert [True, True] == await end_all(live_ledger, found)


async def test_a_record_in_processing_without_a_lease_is_taken_over(path: Path, claims: SqliteClaimStore) -> None:
    await claim(claims)
    run(path, "UPDATE redrive_claim SET lease_until = NULL")

    verdict = await claim(claims)

    assert isinstance(verdict, Acquired)
    assert 2 == verdict.attempts


async def test_of_equal_keys_in_one_batch_the_first_runs(ledger: SqliteLedger) -> None:
    await ledger.publish([*many(1), *many(1), *many(2)])

    verdicts = [each.verdict for each in await take(ledger)]

    assert [Acquired, InProgress, InProgress, Acquired] == [type(verdict) for verdict in verdicts]


async def test_another_message_that_dies_under_a_known_letter_id_keeps_its_own_letter(
    file: SqliteFile, ledger: SqliteLedger
) -> None:
    """Idempotency off, or the key's record expired: the second death must not vanish into the first one's letter."""
    await ledger.publish([*many(1, key=None, body=b"first"), *many(1, key=None, body=b"second")])
    taken = await take(ledger)

    ends = [
        End(
            taken=each,
            settlement=settlement.DeadLetter(reason=WHY),
            letter=letter("dl_1", message=each.received.message),
        )
        for each in taken
    ]
    assert [True, True] == await ledger.commit(ends)

    assert [(b"first",), (b"second",)] == rows(file.path, "SELECT body FROM redrive_letter_content ORDER BY seq")


async def test_pruning_takes_expired_records_only_and_a_bounded_number(
    claims: SqliteClaimStore, clock: FakeClock
) -> None:
    ends = []
    for number in range(10):
        verdict = await claim(claims, f"k-{number}")
        assert isinstance(verdict, Acquired)
        expires_at = clock.now() + (SECOND if number < 7 else DAY)
        ends.append(ClaimEnd(ref=verdict.ref, state=ClaimState.PROCESSED, expires_at=expires_at))
    await claims.finish(ends)
    await clock.advance(SECOND)

    assert [5, 2, 0] == [await claims.prune(limit=5) for _ in range(3)]
    assert isinstance(await claim(claims, "k-9"), Duplicate)
