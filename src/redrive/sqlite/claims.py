"""Claims in the tables of one file: `judge` made true. Every function runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from redrive.core.idempotency import (
    Acquired,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    InProgress,
    Verdict,
    conflicts,
    is_expired,
    judge,
)
from redrive.core.ports import ClaimEnd, Published, Registration
from redrive.core.text import clean
from redrive.core.units import Millis, UnixMs
from redrive.sqlite import statements as sql
from redrive.sqlite.queue import Head, find_queue, named_queue
from redrive.sqlite.rows import (
    DEAD_LETTERED,
    FAILED,
    PROCESSED,
    PROCESSING,
    RECEIVED,
    WHOLE_CLAIM_COLUMNS,
    claim_from,
)
from redrive.sqlite.values import (
    ROWS_PER_STEP,
    insert_rows,
    numbers,
    pieces,
    size_for,
    text_in,
    text_out,
    values_list,
)
from redrive.sqlite.writer import Tx

Known = dict[str, tuple[int, ClaimRecord]]
"""Stored records of one queue: key to (id, record)."""

_MESSAGE_KEY: Final = 7
_CLAIM_AT: Final = 17
"""Columns of SELECT_READY_AND_CLAIMS: the message's key, the claim's id and after it CLAIM_COLUMNS."""


Held = tuple[int, "int | None"]
"""(attempt, claim id) that a lease keeps, should it never be ended."""


def claim_head(tx: Tx, head: Head, *, lease_ms: Millis, worker: str) -> tuple[list[Verdict | None], list[Held]]:
    """Claim the keys of messages about to be leased: each one's verdict, and its (attempt, claim id) for the lease."""
    until = tx.now + lease_ms
    if _are_all_fresh(head):
        return _claim_fresh(tx, head, until=until, owner=clean(worker))
    verdicts: list[Verdict | None] = []
    fresh: list[int] = []
    again: dict[str, int] = {}
    told: dict[str, Verdict] = {}
    for row in head.rows:
        if row[_MESSAGE_KEY] is None:
            verdicts.append(None)
            continue
        key = text_out(row[_MESSAGE_KEY])
        verdict = told.get(key)
        if verdict is None:
            record = None
            if row[_CLAIM_AT] is not None:
                record = claim_from(row[_CLAIM_AT + 1 :], queue=head.queue, key=key)
                again[key] = row[_CLAIM_AT]
            verdict = judge(record, queue=head.queue, key=key, now=tx.now)
            if isinstance(verdict, Acquired) and record is None:
                fresh.append(row[0])
            # What a later copy of this key in the same batch is told: the first one has it.
            told[key] = InProgress(lease_until=until, owner=worker) if isinstance(verdict, Acquired) else verdict
        verdicts.append(verdict)
    ids = _write_claims(tx, verdicts, fresh=fresh, known=again, until=until, owner=clean(worker))
    return verdicts, _held(head, verdicts, ids)


def _are_all_fresh(head: Head) -> bool:
    """The usual case: every message has a key, nobody knows it yet, and none comes twice."""
    keys = {row[_MESSAGE_KEY] for row in head.rows if row[_CLAIM_AT] is None}
    return len(keys) == len(head.rows) and None not in keys


def _claim_fresh(tx: Tx, head: Head, *, until: UnixMs, owner: str) -> tuple[list[Verdict | None], list[Held]]:
    queue, now = head.queue, tx.now
    verdicts: list[Verdict | None] = [
        judge(None, queue=queue, key=text_out(row[_MESSAGE_KEY]), now=now) for row in head.rows
    ]
    last = tx.execute(sql.NEW_CLAIMS, (owner, until, tx.now, numbers([row[0] for row in head.rows]))).lastrowid or 0
    return verdicts, [(1, claim_id) for claim_id in range(last - len(verdicts) + 1, last + 1)]


def _write_claims(
    tx: Tx, verdicts: Sequence[Verdict | None], *, fresh: list[int], known: dict[str, int], until: UnixMs, owner: str
) -> dict[str, int]:
    """Store what was acquired; key to claim id. `fresh`: messages, in order, whose keys had no record."""
    acquired = [verdict for verdict in verdicts if isinstance(verdict, Acquired)]
    taken = [
        [known[verdict.ref.key], verdict.attempts, verdict.cycle, verdict.ref.token]
        for verdict in acquired
        if verdict.ref.key in known
    ]
    if taken:
        tx.execute(sql.TAKE_CLAIMS, (tx.now, owner, until, tx.now, numbers(taken)))
    ids = dict(known)
    if fresh:
        last = tx.execute(sql.NEW_CLAIMS, (owner, until, tx.now, numbers(fresh))).lastrowid or 0
        first = last - len(fresh) + 1
        new_keys = [verdict.ref.key for verdict in acquired if verdict.ref.key not in known]
        ids.update(zip(new_keys, range(first, first + len(fresh)), strict=True))
    return ids


def _held(head: Head, verdicts: Sequence[Verdict | None], ids: dict[str, int]) -> list[Held]:
    held: list[Held] = []
    for row, verdict in zip(head.rows, verdicts, strict=True):
        if isinstance(verdict, Acquired):
            held.append((verdict.attempts, ids[verdict.ref.key]))
        else:
            held.append((row[3] + 1, None))
    return held


# ---------------------------------------------------------------------------------------------------- the store's own

_BY_KEYS: Final = (
    f"SELECT c.id, v.column1, c.{WHOLE_CLAIM_COLUMNS.replace(', ', ', c.')} FROM (VALUES {{}}) v "  # noqa: S608 - constants
    "CROSS JOIN redrive_claim c ON c.queue_id = ? AND c.key = v.column1"
)
_INSERT: Final = (
    "INSERT INTO redrive_claim (queue_id, key, state, attempts, cycle, token, owner, lease_until, expires_at, digest, "
    "updated_at)"
)


def find(connection: sqlite3.Connection, queue: str, keys: Sequence[str]) -> Known:
    """The stored records of these keys."""
    queue_id = find_queue(connection, queue)
    found: Known = {}
    if queue_id is None:
        return found
    for piece in pieces(list(dict.fromkeys(keys))):
        statement = _BY_KEYS.format(values_list(1, len(piece)))
        for row in connection.execute(statement, [*map(text_in, piece), queue_id]).fetchall():
            key = text_out(row[1])
            found[key] = (row[0], claim_from(row[2:], queue=queue, key=key))
    return found


def claim(
    tx: Tx, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str, gone: Collection[str] = ()
) -> list[Verdict]:
    """Verdicts for (queue, key) pairs; what is acquired is stored. Of equal pairs the first wins."""
    if _insert_fresh(tx, batch, until=tx.now + lease_ms, owner=clean(owner)):
        return [Acquired(ref=ClaimRef(queue=queue, key=key, token=1), attempts=1, cycle=0) for queue, key in batch]
    known = _known(tx.connection, batch)
    until, holder = tx.now + lease_ms, clean(owner)
    ended = frozenset(map(clean, gone))
    told: dict[tuple[str, str], Verdict] = {}
    fresh: list[tuple[Any, ...]] = []
    taken: list[list[int]] = []
    lost: list[tuple[str, int, int]] = []
    verdicts: list[Verdict] = []
    for queue, key in batch:
        verdict = told.get((queue, key))
        if verdict is None:
            record_id, record = known.get((queue, key), (None, None))
            verdict = judge(record, queue=queue, key=key, now=tx.now, gone=ended)
            told[queue, key] = InProgress(lease_until=until, owner=owner) if isinstance(verdict, Acquired) else verdict
            if isinstance(verdict, Acquired):
                counts = (verdict.attempts, verdict.cycle, verdict.ref.token)
                if record_id is None:
                    scope = (named_queue(tx, queue), text_in(key))
                    fresh.append((*scope, PROCESSING, *counts, holder, until, None, None, tx.now))
                else:
                    taken.append([record_id, *counts])
                if verdict.lost is not None and record_id is not None:
                    lost.append((verdict.lost.worker, verdict.lost.at, record_id))
        verdicts.append(verdict)
    insert_rows(tx.connection, _INSERT, fresh)
    if taken:
        tx.execute(sql.TAKE_CLAIMS, (tx.now, holder, until, tx.now, numbers(taken)))
    if lost:
        tx.connection.executemany("UPDATE redrive_claim SET lost_by = ?, lost_at = ? WHERE id = ?", lost)
    return verdicts


_INSERT_FRESH: Final = (
    "INSERT OR IGNORE INTO redrive_claim (queue_id, state, attempts, cycle, token, owner, lease_until, updated_at, key)"
)


def _insert_fresh(tx: Tx, batch: Sequence[tuple[str, str]], *, until: UnixMs, owner: str) -> bool:
    """The usual case, in one statement: keys of one queue that nobody knows yet, none twice. False: it is another case,
    and nothing was stored.
    """
    queue = batch[0][0] if batch else ""
    if not batch or len(batch) > ROWS_PER_STEP or any(other != queue for other, _ in batch):
        return False
    same = (named_queue(tx, queue), PROCESSING, 1, 0, 1, owner, until, tx.now)
    with _all_or_nothing(tx) as attempt:
        insert_rows(tx.connection, _INSERT_FRESH, [(text_in(key),) for _, key in batch], same=same)
        attempt.succeeded = tx.execute("SELECT changes()").fetchone()[0] == len(batch)
    return attempt.succeeded


@dataclass(slots=True)
class _Attempt:
    succeeded: bool = False


@contextmanager
def _all_or_nothing(tx: Tx) -> Iterator[_Attempt]:
    """What is done inside stays only where it says so. An error takes the whole transaction with it."""
    attempt = _Attempt()
    tx.execute("SAVEPOINT redrive_claims")
    yield attempt
    if not attempt.succeeded:
        tx.execute("ROLLBACK TO redrive_claims")
    tx.execute("RELEASE redrive_claims")


def _known(
    connection: sqlite3.Connection, pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[int, ClaimRecord]]:
    by_queue: dict[str, list[str]] = {}
    for queue, key in pairs:
        by_queue.setdefault(queue, []).append(key)
    return {
        (queue, key): found for queue, keys in by_queue.items() for key, found in find(connection, queue, keys).items()
    }


def register(tx: Tx, batch: Sequence[Registration]) -> list[Published]:
    """Insert `received` where the key is free, reopen `dead_lettered`; else say duplicate or conflict."""
    known = _known(tx.connection, [(each.queue, each.key) for each in batch])
    digests: dict[tuple[str, str], str | None] = {}
    fresh: list[tuple[Any, ...]] = []
    answers: list[Published] = []
    for each in batch:
        scope = (each.queue, each.key)
        found = known.get(scope)
        if scope not in digests and (found is None or _is_free(found[1], tx.now)):
            digests[scope] = each.digest
            if found is None:
                queue_id, key = named_queue(tx, each.queue), text_in(each.key)
                fresh.append((queue_id, key, RECEIVED, 0, 0, 0, None, None, each.expires_at, each.digest, tx.now))
            else:
                _reopen(tx, found, each)
            answers.append(Published())
        else:
            digest = digests[scope] if scope in digests or found is None else found[1].digest
            answers.append(Published(duplicate=True, conflict=conflicts(digest, each.digest)))
    insert_rows(tx.connection, _INSERT, fresh)
    return answers


def _is_free(record: ClaimRecord, now: UnixMs) -> bool:
    return is_expired(record, now) or record.state is ClaimState.DEAD_LETTERED


def _reopen(tx: Tx, found: tuple[int, ClaimRecord], each: Registration, *, attempts: int = 0) -> None:
    """An existing record is `received` again: in the next cycle, or, where it had expired, as if it were new."""
    record_id, record = found
    cycle = 0 if is_expired(record, tx.now) else record.cycle + 1
    tx.execute(
        "UPDATE redrive_claim SET state = 0, attempts = ?, cycle = ?, owner = NULL, lease_until = NULL, "
        "lost_by = NULL, lost_at = NULL, expires_at = ?, digest = ?, updated_at = ? WHERE id = ?",
        (attempts, cycle, each.expires_at, each.digest, tx.now, record_id),
    )


def reopen(tx: Tx, queue: str, key: str, *, attempts: int) -> None:
    """For a redrive: `dead_lettered`, expired or unknown becomes `received` in a new cycle with so many attempts
    counted; other states stay as they are.
    """
    found = find(tx.connection, queue, [key]).get(key)
    if found is None:
        if attempts:
            row = (named_queue(tx, queue), text_in(key), RECEIVED, attempts, 0, 0, None, None, None, None, tx.now)
            insert_rows(tx.connection, _INSERT, [row])
    elif _is_free(found[1], tx.now):
        digest = None if is_expired(found[1], tx.now) else found[1].digest
        _reopen(tx, found, Registration(queue=queue, key=key, digest=digest), attempts=attempts)


_END_STATE: Final = {
    ClaimState.PROCESSED: PROCESSED,
    ClaimState.FAILED: FAILED,
    ClaimState.DEAD_LETTERED: DEAD_LETTERED,
}


def finish(tx: Tx, batch: Sequence[ClaimEnd]) -> list[bool]:
    """End claims whose token is current and that are in processing."""
    if _end_alike(tx, batch):
        return [True] * len(batch)
    known = _known(tx.connection, [(each.ref.queue, each.ref.key) for each in batch])
    ended: list[tuple[int, ClaimEnd]] = []
    answers = []
    for each in batch:
        found = known.pop((each.ref.queue, each.ref.key), None)
        is_current = found is not None and _is_current(found[1], each)
        if found is not None and is_current:
            ended.append((found[0], each))
        answers.append(is_current)
    end(tx, [(claim_id, each.state, each.expires_at) for claim_id, each in ended])
    return answers


_END_ALIKE: Final = (
    "UPDATE redrive_claim SET state = ?, owner = NULL, lease_until = NULL, lost_by = NULL, lost_at = NULL, "  # noqa: S608
    "expires_at = ?, updated_at = ? FROM (VALUES {}) v WHERE queue_id = ? AND key = v.column1 AND token = v.column2 "
    f"AND state = {PROCESSING}"
)


def _end_alike(tx: Tx, batch: Sequence[ClaimEnd]) -> bool:
    """The usual case, in one statement: current claims of one queue that all end alike, none twice. False: it is
    another case, and nothing was changed.
    """
    if not batch or len(batch) > ROWS_PER_STEP:
        return False
    first = batch[0]
    queue, state, expires_at = first.ref.queue, first.state, first.expires_at
    if state is ClaimState.RECEIVED or any(
        each.state is not state or each.expires_at != expires_at or each.ref.queue != queue for each in batch
    ):
        return False
    size = size_for(len(batch))
    given: list[Any] = [_END_STATE[state], expires_at, tx.now]
    for each in batch:
        given += (text_in(each.ref.key), each.ref.token)
    given += [None] * (2 * (size - len(batch)))
    given.append(find_queue(tx.connection, queue))
    with _all_or_nothing(tx) as attempt:
        moved = tx.execute(_END_ALIKE.format(values_list(2, size)), given).rowcount
        attempt.succeeded = moved == len(batch)
    return attempt.succeeded


def _is_current(record: ClaimRecord, each: ClaimEnd) -> bool:
    if record.token != each.ref.token:
        return False
    # A letter may be stored first and its claim ended after: FAILED with the same token goes on to DEAD_LETTERED.
    is_second_step = record.state is ClaimState.FAILED and each.state is ClaimState.DEAD_LETTERED
    return record.state is ClaimState.PROCESSING or is_second_step


def end(tx: Tx, ends: Sequence[tuple[int, ClaimState, UnixMs | None]]) -> None:
    """Move claims, by id, whose fence was checked. RECEIVED is a release: it gives the attempt back."""
    by_state: dict[ClaimState, list[list[int | None]]] = {}
    for claim_id, state, expires_at in ends:
        by_state.setdefault(state, []).append([claim_id, expires_at])
    for state, rows in by_state.items():
        if state is ClaimState.RECEIVED:
            tx.execute(sql.RELEASE_CLAIMS, (tx.now, numbers(rows)))
        else:
            tx.execute(sql.END_CLAIMS, (_END_STATE[state], tx.now, numbers(rows)))


def renew(tx: Tx, batch: Sequence[ClaimRef], *, lease_ms: Millis) -> list[bool]:
    """Current claims in processing hold `lease_ms` longer from now."""
    known = _known(tx.connection, [(ref.queue, ref.key) for ref in batch])
    is_held: Callable[[ClaimRef], bool] = lambda ref: _is_processing(known.get((ref.queue, ref.key)), ref)  # noqa: E731
    answers = [is_held(ref) for ref in batch]
    ids = [known[ref.queue, ref.key][0] for ref, held in zip(batch, answers, strict=True) if held]
    extend(tx, ids, lease_ms=lease_ms)
    return answers


def _is_processing(found: tuple[int, ClaimRecord] | None, ref: ClaimRef) -> bool:
    return found is not None and found[1].state is ClaimState.PROCESSING and found[1].token == ref.token


def extend(tx: Tx, ids: Sequence[Any], *, lease_ms: Millis) -> None:
    """Claims, by id, hold `lease_ms` longer from now."""
    tx.execute(
        "UPDATE redrive_claim SET lease_until = ? WHERE id IN (SELECT value FROM json_each(?))",
        (tx.now + lease_ms, numbers(list(ids))),
    )


def prune(tx: Tx, *, limit: int) -> int:
    """Delete at most `limit` expired records, oldest first; how many went. One in processing stays."""
    gone = tx.execute(
        "DELETE FROM redrive_claim WHERE id IN (SELECT id FROM redrive_claim WHERE expires_at IS NOT NULL AND "
        "expires_at <= ? ORDER BY expires_at LIMIT ?)",
        (tx.now, limit),
    ).rowcount
    tx.is_pruned = True
    return gone
