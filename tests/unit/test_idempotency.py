"""Claims: every pair of state and event, and the arithmetic of leases, tokens and attempts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import settlement
from redrive.core.idempotency import (
    TRANSITIONS,
    Acquired,
    ClaimEvent,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    Duplicate,
    InProgress,
    claimed,
    conflicts,
    ended,
    is_expired,
    judge,
    lease_end,
    registered,
    renewed,
    reopened,
    state_at,
)
from redrive.core.settlement import Reason

S, E = ClaimState, ClaimEvent
NOW = 1_000_000
WHY = Reason(code="TEST", text="so it is")
LEGAL = {
    (S.RECEIVED, E.CLAIM): S.PROCESSING,
    (S.RECEIVED, E.REOPEN): S.RECEIVED,
    (S.PROCESSING, E.CLAIM): S.PROCESSING,
    (S.PROCESSING, E.SUCCEED): S.PROCESSED,
    (S.PROCESSING, E.FAIL): S.FAILED,
    (S.PROCESSING, E.RELEASE): S.RECEIVED,
    (S.FAILED, E.CLAIM): S.PROCESSING,
    (S.FAILED, E.DEAD_LETTER): S.DEAD_LETTERED,
    (S.DEAD_LETTERED, E.REOPEN): S.RECEIVED,
}


def a_record(state: ClaimState, *, attempts: int = 1, lease_until: int | None = None) -> ClaimRecord:
    return ClaimRecord(queue="orders", key="k", state=state, attempts=attempts, token=7, lease_until=lease_until)


def claim_of(record: ClaimRecord | None, now: int = NOW) -> Acquired:
    verdict = judge(record, queue="orders", key="k", now=now)
    assert isinstance(verdict, Acquired)
    return verdict


@pytest.mark.parametrize(("state", "event"), list(itertools.product(ClaimState, ClaimEvent)))
def test_every_pair_of_state_and_event_is_as_the_document_has_it(state: ClaimState, event: ClaimEvent) -> None:
    assert LEGAL.get((state, event)) == TRANSITIONS[state].get(event)


ENDS = {
    (S.PROCESSING, S.PROCESSED): S.PROCESSED,
    (S.PROCESSING, S.FAILED): S.FAILED,
    (S.PROCESSING, S.RECEIVED): S.RECEIVED,
    (S.PROCESSING, S.DEAD_LETTERED): S.DEAD_LETTERED,
    (S.FAILED, S.DEAD_LETTERED): S.DEAD_LETTERED,
}


@pytest.mark.parametrize(
    ("state", "to"), [pair for pair in itertools.product(ClaimState, ClaimState) if pair[1] is not S.PROCESSING]
)
def test_a_claim_ends_only_where_the_table_leads(state: ClaimState, to: ClaimState) -> None:
    after = ended(a_record(state), to, token=7, now=NOW)

    assert ENDS.get((state, to)) == (None if after is None else after.state)


def test_an_end_with_another_token_changes_nothing() -> None:
    assert ended(a_record(S.PROCESSING), S.PROCESSED, token=6, now=NOW) is None
    assert ended(None, S.PROCESSED, token=7, now=NOW) is None


def test_an_end_lets_go_of_lease_and_owner_and_sets_when_the_record_may_go() -> None:
    held = replace(a_record(S.PROCESSING, lease_until=NOW + 5), owner="w")

    after = ended(held, S.PROCESSED, token=7, now=NOW, expires_at=NOW + 9)

    assert after == replace(held, state=S.PROCESSED, lease_until=None, owner=None, expires_at=NOW + 9, updated_at=NOW)


@pytest.mark.parametrize(("attempts", "state"), [(1, S.RECEIVED), (2, S.FAILED), (0, S.RECEIVED)])
def test_a_release_gives_its_start_back_and_keeps_earlier_failures(attempts: int, state: ClaimState) -> None:
    after = ended(a_record(S.PROCESSING, attempts=attempts), S.RECEIVED, token=7, now=NOW)

    assert after is not None
    assert (state, max(0, attempts - 1)) == (after.state, after.attempts)


def test_a_new_key_is_acquired_as_attempt_one() -> None:
    assert Acquired(ref=ClaimRef(queue="orders", key="k", token=1), attempts=1, cycle=0) == claim_of(None)


def test_a_processed_key_is_a_duplicate_until_its_record_expires() -> None:
    done = replace(a_record(S.PROCESSED), expires_at=NOW + 1)

    assert Duplicate() == judge(done, queue="orders", key="k", now=NOW)
    assert Acquired(ref=ClaimRef(queue="orders", key="k", token=8), attempts=1, cycle=0) == claim_of(done, NOW + 1)


def test_a_running_claim_is_in_progress_until_its_lease_ends_then_a_lost_start() -> None:
    running = a_record(S.PROCESSING, lease_until=NOW + 1)

    assert InProgress(lease_until=NOW + 1) == judge(running, queue="orders", key="k", now=NOW)
    assert 2 == claim_of(running, NOW + 1).attempts
    assert 8 == claim_of(running, NOW + 1).ref.token


def test_a_processing_record_without_a_lease_is_nobodys() -> None:
    assert 2 == claim_of(a_record(S.PROCESSING)).attempts


def test_a_failed_key_is_claimed_again_as_the_next_attempt() -> None:
    assert 4 == claim_of(a_record(S.FAILED, attempts=3)).attempts


def test_a_new_send_after_a_dead_letter_starts_a_new_cycle_at_attempt_one() -> None:
    verdict = claim_of(replace(a_record(S.DEAD_LETTERED, attempts=5), cycle=2))

    assert (1, 3) == (verdict.attempts, verdict.cycle)


@pytest.mark.parametrize("state", list(ClaimState))
def test_a_redrive_reopens_dead_lettered_and_nothing_that_ran_or_runs(state: ClaimState) -> None:
    after = reopened(replace(a_record(state, attempts=5), cycle=2), now=NOW)

    if state is S.DEAD_LETTERED:
        assert after is not None
        assert (S.RECEIVED, 0, 3) == (after.state, after.attempts, after.cycle)
    elif state is S.RECEIVED:
        assert after is not None
        assert 2 == after.cycle
    else:
        assert after is None


@pytest.mark.parametrize("state", list(ClaimState))
def test_a_key_is_accepted_once_and_again_after_it_was_dead_lettered_or_forgotten(state: ClaimState) -> None:
    known = replace(a_record(state, attempts=5), digest="old", expires_at=NOW + 1)

    again = registered(known, queue="orders", key="k", now=NOW, digest="new", expires_at=NOW + 9)
    forgotten = registered(known, queue="orders", key="k", now=NOW + 1, digest="new")
    new = registered(None, queue="orders", key="k", now=NOW)

    if state is S.DEAD_LETTERED:
        assert again is not None
        assert (S.RECEIVED, 0, 1, "new", NOW + 9) == (
            again.state, again.attempts, again.cycle, again.digest, again.expires_at,
        )  # fmt: skip
    else:
        assert again is None
    assert forgotten is not None
    assert (S.RECEIVED, 0, 0, 7, "new") == (
        forgotten.state, forgotten.attempts, forgotten.cycle, forgotten.token, forgotten.digest,
    )  # fmt: skip
    assert ClaimRecord(queue="orders", key="k", state=S.RECEIVED, updated_at=NOW) == new


def test_another_body_under_a_key_shows_by_its_digest_only() -> None:
    assert [False, True, False, False] == [
        conflicts(*pair) for pair in (("a", "a"), ("a", "b"), ("a", None), (None, "b"))
    ]


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (settlement.ACK, S.PROCESSED),
        (settlement.Retry(due_at=NOW, reason=WHY), S.FAILED),
        (settlement.Requeue(due_at=NOW, reason=WHY), S.RECEIVED),
        (settlement.DeadLetter(reason=WHY), S.DEAD_LETTERED),
    ],
)
def test_a_claim_ends_as_its_delivery_does(end: settlement.Settlement, state: ClaimState) -> None:
    assert state is state_at(end)


@pytest.mark.parametrize("state", list(ClaimState))
def test_a_lease_is_renewed_only_by_its_token_while_processing(state: ClaimState) -> None:
    after = renewed(a_record(state), token=7, lease_until=NOW)

    assert (state is S.PROCESSING) == (after is not None)
    assert renewed(a_record(S.PROCESSING), token=6, lease_until=NOW) is None
    assert renewed(None, token=7, lease_until=NOW) is None


def test_a_gateways_digest_stays_with_a_live_record_and_goes_with_an_expired_one() -> None:
    received = replace(a_record(S.RECEIVED, attempts=0), digest="d", expires_at=NOW + 1)

    live = claimed(received, claim_of(received), owner="w", lease_until=NOW + 30, now=NOW)
    late = claimed(received, claim_of(received, NOW + 1), owner="w", lease_until=NOW + 30, now=NOW + 1)

    assert ("d", None) == (live.digest, late.digest)


def test_a_crash_after_the_claim_blocks_only_until_the_lease_ends_and_retention_counts_from_the_end() -> None:
    day, second = 86_400_000, 1_000
    lease = 30 * second
    held = claimed(None, claim_of(None, 0), owner="w", lease_until=lease_end(0, lease), now=0)

    assert isinstance(judge(held, queue="orders", key="k", now=29 * second), InProgress)
    again = claim_of(held, 31 * second)
    held = claimed(held, again, owner="v", lease_until=lease_end(31 * second, lease), now=31 * second)
    done = ended(held, S.PROCESSED, token=again.ref.token, now=40 * second, expires_at=40 * second + day)
    assert Duplicate() == judge(done, queue="orders", key="k", now=23 * 3_600 * second)
    assert 1 == claim_of(done, day + 41 * second).attempts


@given(st.lists(st.sampled_from(["claim", "late_claim", "succeed", "fail", "release", "dead", "reopen"]), max_size=30))
def test_whatever_happens_tokens_grow_and_only_the_last_claim_can_end(events: list[str]) -> None:
    record: ClaimRecord | None = None
    now, tokens = 0, [0]
    for event in events:
        now += 1
        if event in ("claim", "late_claim"):
            now += 100 if event == "late_claim" else 0
            verdict = judge(record, queue="q", key="k", now=now)
            if isinstance(verdict, Acquired):
                tokens.append(verdict.ref.token)
                record = claimed(record, verdict, owner="w", lease_until=now + 50, now=now)
        elif event == "reopen":
            record = (reopened(record, now=now) or record) if record is not None else None
        else:
            to = {"succeed": S.PROCESSED, "fail": S.FAILED, "release": S.RECEIVED, "dead": S.DEAD_LETTERED}[event]
            assert all(ended(record, to, token=token, now=now) is None for token in tokens[:-1])
            record = ended(record, to, token=tokens[-1], now=now) or record
        assert record is None or record.attempts >= 0
    assert sorted(set(tokens)) == tokens


def test_a_record_expires_at_its_instant_and_without_one_never() -> None:
    assert not is_expired(a_record(S.PROCESSED), 2**60)
    assert is_expired(replace(a_record(S.PROCESSED), expires_at=NOW), NOW)
    assert not is_expired(replace(a_record(S.PROCESSED), expires_at=NOW), NOW - 1)
