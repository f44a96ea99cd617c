"""Claims: who handles (queue, key). Each function is one statement, which decides as `core.idempotency` does.

Rows are touched in the order of their ids, so that two batches of the same keys wait for each other and never cross.
The row is read, judged and written under its lock (`ON CONFLICT DO UPDATE` sees the newest version of it), and keeps
the mark of the call that moved it last: so the statement can return which rows it moved, and a call that is sent again
because its answer was lost is told the same again.

Authoritative: the row, and the server's clock. Killed at any point: the statement happened whole, or not at all.
Known weak spot: a claim whose answer is lost, and whose second try fails too, holds its keys until its lease ends.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final

from redrive.core.idempotency import (
    Acquired,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    Duplicate,
    InProgress,
    LostStart,
    Verdict,
    conflicts,
)
from redrive.core.ports import ClaimEnd, Published, Registration
from redrive.core.text import clean
from redrive.core.units import Millis, UnixMs
from redrive.postgres.database import NOW, Tx
from redrive.postgres.values import text_in

STATES: Final = (
    ClaimState.RECEIVED,
    ClaimState.PROCESSING,
    ClaimState.PROCESSED,
    ClaimState.FAILED,
    ClaimState.DEAD_LETTERED,
)
"""By the number stored."""
RECEIVED, PROCESSING, PROCESSED, FAILED, DEAD_LETTERED = range(5)
_NUMBER: Final = {state: number for number, state in enumerate(STATES)}
_DUPLICATE: Final = Duplicate()


def scope_id(queue: str, key: str) -> bytes:
    """The row of this (queue, key)."""
    name = queue.encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%d:%b%b" % (len(name), name, key.encode("utf-8", "surrogatepass"))).digest()


# ---------------------------------------------------------------------------------------------------- claim

# "excluded" carries what the update needs beside the row itself: now in updated_at, the lease's end in lease_until.
_FREE: Final = (
    "(c.call IS DISTINCT FROM excluded.call AND (c.expires_at <= excluded.updated_at OR NOT (c.state = 2 "
    "OR (c.state = 1 AND coalesce(c.lease_until, 0) > excluded.updated_at "
    "AND NOT coalesce(c.owner, '') = ANY (%(gone)s)))))"
)
_NEW: Final = "coalesce(c.expires_at <= excluded.updated_at, false)"
_FRESH: Final = f"({_NEW} OR c.state = {DEAD_LETTERED})"


def _when_free(value: str, *, column: str) -> str:
    return f"{column} = CASE WHEN {_FREE_OR_FALSE} THEN {value} ELSE c.{column} END"


_FREE_OR_FALSE: Final = f"coalesce({_FREE}, false)"

_CLAIM: Final = (
    "INSERT INTO @claim AS c (id, queue, key, state, attempts, cycle, token, owner, lease_until, updated_at, call) "  # noqa: S608 - constants
    f"SELECT g.id, g.queue, g.key, {PROCESSING}, 1, 0, 1, %(owner)s, n.now + %(lease)s, n.now, %(call)s "
    "FROM unnest(%(ids)s::bytea[], %(queues)s::text[], %(keys)s::text[]) AS g (id, queue, key), "
    f"(SELECT {NOW} AS now) n ORDER BY g.id ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(
        (
            _when_free(f"CASE WHEN {_FRESH} THEN 1 ELSE c.attempts + 1 END", column="attempts"),
            _when_free(
                f"CASE WHEN {_NEW} THEN 0 WHEN c.state = {DEAD_LETTERED} THEN c.cycle + 1 ELSE c.cycle END",
                column="cycle",
            ),
            _when_free("c.token + 1", column="token"),
            _when_free(
                f"CASE WHEN {_FRESH} THEN NULL "
                f"WHEN c.state = {PROCESSING} THEN coalesce(c.owner, '') ELSE c.lost_by END",
                column="lost_by",
            ),
            _when_free(
                f"CASE WHEN {_FRESH} THEN NULL WHEN c.state = {PROCESSING} THEN c.updated_at ELSE c.lost_at END",
                column="lost_at",
            ),
            _when_free(f"CASE WHEN {_NEW} THEN NULL ELSE c.digest END", column="digest"),
            _when_free("excluded.owner", column="owner"),
            _when_free("excluded.lease_until", column="lease_until"),
            _when_free("NULL", column="expires_at"),
            _when_free("excluded.updated_at", column="updated_at"),
            _when_free("excluded.call", column="call"),
            _when_free(str(PROCESSING), column="state"),
        )
    )
    + " RETURNING id, call = %(call)s, state, attempts, cycle, token, owner, lease_until, lost_by, lost_at, "
    f"{NOW} AS now"
)


def claim(
    tx: Tx,
    batch: Sequence[tuple[str, str]],
    *,
    lease_ms: Millis,
    owner: str,
    gone: Collection[str],
    now: UnixMs | None,
    call: uuid.UUID,
) -> list[Verdict]:
    """Verdicts for (queue, key) pairs; what is acquired is stored. Of equal pairs the first wins."""
    ids = [scope_id(queue, key) for queue, key in batch]
    first = dict(zip(reversed(ids), reversed(batch), strict=True))
    given = {
        "ids": list(first),
        "queues": [text_in(queue) for queue, _ in first.values()],
        "keys": [text_in(key) for _, key in first.values()],
        "owner": clean(owner),
        "lease": lease_ms,
        "gone": [clean(name) for name in gone],
        "now": now,
        "call": call,
    }
    rows = {row[0]: row[1:] for row in tx.execute(_CLAIM, given)}
    told: set[bytes] = set()
    verdicts: list[Verdict] = []
    for scope, (queue, key) in zip(ids, batch, strict=True):
        verdicts.append(_verdict(rows[scope], queue, key, is_first=scope not in told))
        told.add(scope)
    return verdicts


def _verdict(row: Sequence[Any], queue: str, key: str, *, is_first: bool) -> Verdict:
    is_mine, state, attempts, cycle, token, owner, lease_until, lost_by, lost_at, now = row
    if is_mine and is_first:
        lost = None if lost_by is None else LostStart(worker=lost_by, at=lost_at)
        return Acquired(ref=ClaimRef(queue=queue, key=key, token=token), attempts=attempts, cycle=cycle, lost=lost)
    if state == PROCESSED:
        return _DUPLICATE
    return InProgress(lease_until=now if lease_until is None else lease_until, owner=owner)


def give_back(tx: Tx, verdicts: Sequence[Verdict]) -> None:
    """Release what was acquired for somebody who has gone: costs no attempt."""
    ends = [
        ClaimEnd(ref=verdict.ref, state=ClaimState.RECEIVED) for verdict in verdicts if isinstance(verdict, Acquired)
    ]
    if ends:
        finish(tx, ends, now=tx.now, call=uuid.uuid4())


# ---------------------------------------------------------------------------------------------------- finish, renew

_LOCKED: Final = "locked AS (SELECT c.id FROM @claim c JOIN given g USING (id) ORDER BY c.id FOR UPDATE OF c)"

_DONE: Final = "coalesce(c.call = %(call)s, false)"
"""This very call has moved the row already; its answer was lost."""

_FINISH: Final = (
    "WITH given AS (SELECT * FROM unnest(%(ids)s::bytea[], %(tokens)s::bigint[], %(states)s::smallint[], "  # noqa: S608 - constants
    "%(expiries)s::bigint[]) AS g (id, token, state, expires_at)), "
    f"{_LOCKED} UPDATE @claim c SET "
    f"state = CASE WHEN {_DONE} THEN c.state WHEN g.state = {RECEIVED} AND c.attempts > 1 THEN {FAILED} "
    "ELSE g.state END, "
    f"attempts = CASE WHEN g.state = {RECEIVED} AND NOT {_DONE} THEN greatest(0, c.attempts - 1) "
    "ELSE c.attempts END, "
    "owner = NULL, lease_until = NULL, expires_at = g.expires_at, "
    f"updated_at = {NOW}, call = %(call)s, "
    f"lost_by = CASE WHEN g.state = {RECEIVED} THEN c.lost_by END, "
    f"lost_at = CASE WHEN g.state = {RECEIVED} THEN c.lost_at END "
    "FROM given g JOIN locked USING (id) WHERE c.id = g.id AND c.token = g.token "
    f"AND ({_DONE} OR c.state = {PROCESSING} OR (c.state = {FAILED} AND g.state = {DEAD_LETTERED})) RETURNING c.id"
)


def finish(tx: Tx, batch: Sequence[ClaimEnd], *, now: UnixMs | None, call: uuid.UUID) -> list[bool]:
    """End claims whose token is current and that are in processing; of several ends of one key the first counts."""
    ids = [scope_id(each.ref.queue, each.ref.key) for each in batch]
    first: dict[bytes, int] = {}
    for place, scope in enumerate(ids):
        first.setdefault(scope, place)
    ends = [batch[place] for place in first.values()]
    given = {
        "ids": list(first),
        "tokens": [each.ref.token for each in ends],
        "states": [_NUMBER[each.state] for each in ends],
        "expiries": [each.expires_at for each in ends],
        "now": now,
        "call": call,
    }
    moved = {row[0] for row in tx.execute(_FINISH, given)}
    return [scope in moved and first[scope] == place for place, scope in enumerate(ids)]


_RENEW: Final = (
    "WITH given AS (SELECT * FROM unnest(%(ids)s::bytea[], %(tokens)s::bigint[]) AS g (id, token)), "  # noqa: S608 - constants
    f"{_LOCKED} UPDATE @claim c SET lease_until = {NOW} + %(lease)s FROM given g JOIN locked USING (id) "
    f"WHERE c.id = g.id AND c.token = g.token AND c.state = {PROCESSING} RETURNING c.id, c.token"
)


def renew(tx: Tx, batch: Sequence[ClaimRef], *, lease_ms: Millis, now: UnixMs | None) -> list[bool]:
    """Current claims in processing hold `lease_ms` longer from now."""
    refs = [(scope_id(ref.queue, ref.key), ref.token) for ref in batch]
    given = {
        "ids": [scope for scope, _ in refs], "tokens": [token for _, token in refs], "lease": lease_ms, "now": now,
    }  # fmt: skip
    held = {(row[0], row[1]) for row in tx.execute(_RENEW, given)}
    return [ref in held for ref in refs]


# ---------------------------------------------------------------------------------------------------- register

_OPEN: Final = (
    f"(c.call IS DISTINCT FROM excluded.call AND (c.state = {DEAD_LETTERED} "
    "OR coalesce(c.expires_at <= excluded.updated_at, false)))"
)


def _when_open(value: str, *, column: str) -> str:
    return f"{column} = CASE WHEN {_OPEN} THEN {value} ELSE c.{column} END"


_REGISTER: Final = (
    "INSERT INTO @claim AS c (id, queue, key, state, attempts, cycle, token, expires_at, digest, updated_at, call) "  # noqa: S608 - constants
    f"SELECT g.id, g.queue, g.key, {RECEIVED}, 0, 0, 0, g.expires_at, g.digest, {NOW}, %(call)s "
    "FROM unnest(%(ids)s::bytea[], %(queues)s::text[], %(keys)s::text[], %(expiries)s::bigint[], %(digests)s::text[]) "
    "AS g (id, queue, key, expires_at, digest) ORDER BY g.id ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(
        (
            _when_open("0", column="attempts"),
            _when_open(f"CASE WHEN {_NEW} THEN 0 ELSE c.cycle + 1 END", column="cycle"),
            _when_open("NULL", column="owner"),
            _when_open("NULL", column="lease_until"),
            _when_open("NULL", column="lost_by"),
            _when_open("NULL", column="lost_at"),
            _when_open("excluded.expires_at", column="expires_at"),
            _when_open("excluded.digest", column="digest"),
            _when_open("excluded.updated_at", column="updated_at"),
            _when_open("excluded.call", column="call"),
            _when_open(str(RECEIVED), column="state"),
        )
    )
    + " RETURNING id, call = %(call)s, digest"
)


def register(tx: Tx, batch: Sequence[Registration], *, now: UnixMs | None, call: uuid.UUID) -> list[Published]:
    """Insert `received` where the key is free, reopen `dead_lettered`; else say duplicate or conflict."""
    ids = [scope_id(each.queue, each.key) for each in batch]
    first = dict(zip(reversed(ids), reversed(batch), strict=True))
    given = {
        "ids": list(first),
        "queues": [text_in(each.queue) for each in first.values()],
        "keys": [text_in(each.key) for each in first.values()],
        "expiries": [each.expires_at for each in first.values()],
        "digests": [each.digest for each in first.values()],
        "now": now,
        "call": call,
    }
    rows = {row[0]: row[1:] for row in tx.execute(_REGISTER, given)}
    answers: list[Published] = []
    told: set[bytes] = set()
    for scope, each in zip(ids, batch, strict=True):
        is_mine, digest = rows[scope]
        if is_mine and scope not in told:
            answers.append(Published())
        else:
            answers.append(Published(duplicate=True, conflict=conflicts(digest, each.digest)))
        told.add(scope)
    return answers


# ---------------------------------------------------------------------------------------------------- one, prune


def get(tx: Tx, queue: str, key: str) -> ClaimRecord | None:
    """The record as stored."""
    row = tx.execute(
        "SELECT state, attempts, cycle, token, owner, lease_until, expires_at, digest, updated_at, lost_by, lost_at "
        "FROM @claim WHERE id = %s",
        (scope_id(queue, key),),
    ).fetchone()
    if row is None:
        return None
    state, attempts, cycle, token, owner, lease_until, expires_at, digest, updated_at, lost_by, lost_at = row
    return ClaimRecord(
        queue=queue,
        key=key,
        state=STATES[state],
        attempts=attempts,
        cycle=cycle,
        token=token,
        owner=owner,
        lease_until=lease_until,
        expires_at=expires_at,
        digest=digest,
        updated_at=updated_at,
        lost=None if lost_by is None else LostStart(worker=lost_by, at=lost_at),
    )


_PRUNE: Final = (
    "DELETE FROM @claim WHERE id IN (SELECT id FROM @claim WHERE expires_at IS NOT NULL AND "  # noqa: S608 - constants
    f"expires_at <= {NOW} ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)"
)


def prune(tx: Tx, *, limit: int, now: UnixMs | None) -> int:
    """Delete at most `limit` expired records, oldest first; how many went. One in processing has no expiry."""
    return tx.execute(_PRUNE, {"limit": limit, "now": now}).rowcount
