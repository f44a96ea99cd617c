"""Messages moving between the tables of one file. Every function runs inside the caller's transaction.

A delivery is in hand while its row in redrive_leased carries its token. Everything that ends a delivery looks at
that row first (`leased_rows`); under SQLite's single write lock nothing can come between the look and the move.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redrive.core import settlement
from redrive.core.letters.letter import Attempt, AttemptOutcome
from redrive.core.message import Message
from redrive.core.policy import flow
from redrive.core.policy.fair import Fair
from redrive.core.ports import Depth, Lease, Outgoing, Received, Settle
from redrive.core.text import clean
from redrive.core.units import Millis, UnixMs
from redrive.sqlite import statements as sql
from redrive.sqlite import turns, windows
from redrive.sqlite.rows import attempt_from, attempt_text, message_from, message_row
from redrive.sqlite.values import insert_rows, numbers, text_in, text_out
from redrive.sqlite.writer import Tx

MAX_BODY_BYTES: Final = 256 * 1024 * 1024
"""SQLite holds up to 1 GB in a value; a row also has to fit into memory a few times."""

# ---------------------------------------------------------------------------------------------------- queues


def find_queue(connection: sqlite3.Connection, name: str) -> int | None:
    """The id under which rows know this name, whether or not the queue exists."""
    row = connection.execute(sql.FIND_QUEUE, (text_in(name),)).fetchone()
    return None if row is None else row[0]


def queue_exists(connection: sqlite3.Connection, name: str) -> bool:
    """Whether something was ever published to this queue or consumed from it."""
    row = connection.execute(sql.FIND_QUEUE, (text_in(name),)).fetchone()
    return row is not None and row[1] is not None


def named_queue(tx: Tx, name: str) -> int:
    """The id of this name, made if need be; the queue does not come into being by that."""
    found = find_queue(tx.connection, name)
    return found if found is not None else _add_queue(tx, name, None)


def declared_queue(tx: Tx, name: str) -> int:
    """The id of this queue, which exists from now on."""
    row = tx.execute(sql.FIND_QUEUE, (text_in(name),)).fetchone()
    return row[0] if row is not None and row[1] is not None else _add_queue(tx, name, tx.now)


def _add_queue(tx: Tx, name: str, declared_at: UnixMs | None) -> int:
    queue_id: int = tx.execute(sql.ADD_QUEUE, (text_in(name), declared_at)).fetchall()[0][0]
    return queue_id


# ---------------------------------------------------------------------------------------------------- publish


def publish(tx: Tx, batch: Sequence[Outgoing]) -> None:
    """Insert every message, ready or scheduled; wakes who waits for one of the queues."""
    ids: dict[str, int] = {}
    for outgoing in batch:
        if outgoing.queue not in ids:
            ids[outgoing.queue] = declared_queue(tx, outgoing.queue)
            tx.wake(outgoing.queue)
    last = insert_rows(tx.connection, sql.INSERT_MESSAGES, [message_row(ids[out.queue], out.message) for out in batch])
    first = last - len(batch) + 1
    # A due time in the past is now: it does not overtake what was published before it.
    if all(out.due_at is None for out in batch):
        tx.execute(sql.READY_FROM_RANGE, (tx.now, first, last))
    else:
        rows = [
            (ids[out.queue], out.message.priority or 0, max(tx.now, out.due_at or 0), seq, 0, 0, 0)
            for seq, out in enumerate(batch, first)
        ]
        _insert_waiting(tx, rows)
    rewritten = [(seq, out.message.body) for seq, out in enumerate(batch, first) if out.message.original is not None]
    insert_rows(tx.connection, sql.INSERT_REWRITTEN, rewritten)


def _insert_waiting(tx: Tx, rows: Iterable[tuple[int, ...]]) -> None:
    """Rows of (queue_id, priority, due_at, seq, starts, token, entries) to where their due time puts them."""
    ready: list[tuple[int, ...]] = []
    scheduled: list[tuple[int, ...]] = []
    for row in rows:
        (ready if row[2] <= tx.now else scheduled).append(row)
    insert_rows(tx.connection, sql.INSERT_READY, ready)
    insert_rows(tx.connection, sql.INSERT_SCHEDULED, scheduled)


# ---------------------------------------------------------------------------------------------------- take


@dataclass(frozen=True, slots=True)
class Head:
    """The messages about to be leased: rows of `SELECT_READY…` in order of hand-over."""

    queue: str
    queue_id: int
    rows: list[tuple[Any, ...]]
    is_fair: bool = False


@dataclass(frozen=True, slots=True)
class Leased:
    """What was just leased, still as rows: whoever waits for it makes the values, while the writer goes on."""

    head: Head
    until: UnixMs
    histories: dict[int, tuple[Attempt, ...]]

    def received(self) -> list[Received]:
        """The deliveries, in order of hand-over."""
        queue, until, histories = self.head.queue, self.until, self.histories
        return [_received(queue, row, until=until, history=histories.get(row[0], ())) for row in self.head.rows]


def next_at(connection: sqlite3.Connection, queue: str) -> UnixMs | None:
    """When the next message of this queue can be handed out: 0 is now, None never by itself."""
    queue_id = find_queue(connection, queue)
    if queue_id is None:
        return None
    ready_at: UnixMs | None = None
    if connection.execute(sql.HAS_READY, (queue_id,)).fetchone():
        ready_at = turns.next_at(connection, queue_id) if turns.is_fair(connection, queue_id) else 0
    if ready_at != 0:
        found = [connection.execute(each, (queue_id,)).fetchone()[0] for each in (sql.NEXT_DUE, sql.NEXT_LEASE_END)]
        ready_at = min((at for at in (*found, ready_at) if at is not None), default=None)
    limited = connection.execute(windows.FREE_AT, (queue_id,)).fetchone()
    return ready_at if ready_at is None or limited is None else max(ready_at, limited[0])


def look(tx: Tx, queue: str, *, limit: int, with_claims: bool) -> Head:
    """The first `limit` messages that can be handed out now, after ended leases and due times were seen to; in a fair
    queue, those whose turn it is.
    """
    queue_id = declared_queue(tx, queue)
    due_at = tx.execute(sql.NEXT_DUE, (queue_id,)).fetchone()[0]
    if due_at is not None and due_at <= tx.now:
        for step in sql.PROMOTE:
            tx.execute(step, (queue_id, tx.now))
    rate, fair = tx.rates.get(queue), tx.fair.get(queue)
    window = None if rate is None else windows.read(tx, queue_id, rate)
    if window is not None:
        limit = min(limit, flow.room(window, tx.now))
    lease_end = tx.execute(sql.NEXT_LEASE_END, (queue_id,)).fetchone()[0]
    if lease_end is not None and lease_end <= tx.now:
        _rescue(tx, queue_id, limit=limit, is_fair=fair is not None)
    if fair is None:
        statement = sql.SELECT_READY_AND_CLAIMS if with_claims else sql.SELECT_READY
        head = Head(queue, queue_id, tx.execute(statement, (queue_id, limit)).fetchall())
    else:
        seqs = turns.choose(tx, queue_id, fair, limit=limit)
        head = Head(queue, queue_id, _turns_of(tx, queue_id, seqs, with_claims=with_claims), is_fair=True)
    if window is not None and head.rows:
        windows.write(tx, queue_id, window, count=len(head.rows))
    return head


def _turns_of(tx: Tx, queue_id: int, seqs: list[int], *, with_claims: bool) -> list[tuple[Any, ...]]:
    if len(seqs) == 1:
        statement = sql.SELECT_ONE_TURN_AND_CLAIMS if with_claims else sql.SELECT_ONE_TURN
        return tx.execute(statement, (seqs[0], queue_id)).fetchall()
    statement = sql.SELECT_TURNS_AND_CLAIMS if with_claims else sql.SELECT_TURNS
    return tx.execute(statement, (numbers(seqs), queue_id)).fetchall() if seqs else []


def _rescue(tx: Tx, queue_id: int, *, limit: int, is_fair: bool) -> None:
    """Make ready what will be handed out now, and only that: a lease that ended stays good until its message is
    really taken, so that a worker that was merely late can still end what nobody else began. (In a fair queue whose
    turn it is shows only once they are ready.)
    """
    ended = tx.execute(sql.SELECT_ENDED, (queue_id, tx.now, limit)).fetchall()
    ready = [] if is_fair else tx.execute(sql.SELECT_READY_PLACES, (queue_id, limit)).fetchall()
    first = set(sorted([*ended, *ready])[:limit])
    seqs = numbers([place[2] for place in ended if place in first])
    for step in sql.RESCUE:
        tx.execute(step, (seqs,))


def lease(
    tx: Tx, head: Head, *, lease_ms: Millis, worker: str, held: Sequence[tuple[int, int | None]] | None = None
) -> Leased | None:
    """Lease every message of the head. `held`: (attempt, claim id) of each; None where claims play no part.

    Answers None where there is none.
    """
    if not head.rows:
        return None
    until = tx.now + lease_ms
    if held is None:
        held = [(row[3] + 1, None) for row in head.rows]
    leased = [
        (seq, priority, due_at, starts + 1, token + 1, entries, attempt, claim_id)
        for (seq, priority, due_at, starts, token, entries, *_), (attempt, claim_id) in zip(
            head.rows, held, strict=True
        )
    ]
    insert_rows(tx.connection, sql.INSERT_LEASED, leased, same=(head.queue_id, tx.now, until, clean(worker)))
    if head.is_fair:
        turns.take(tx, head.queue_id, [(row[1], row[2], row[0]) for row in head.rows])
    else:
        tx.execute(sql.DELETE_READY_UP_TO, (head.queue_id, *head.rows[-1][1:3], head.rows[-1][0]))
    return Leased(head, until, _histories(tx, [row[0] for row in head.rows if row[5]]))


def _received(queue: str, row: tuple[Any, ...], *, until: UnixMs, history: tuple[Attempt, ...]) -> Received:
    seq, starts, token = row[0], row[3], row[4]
    return Received(
        message=message_from(row, 6),
        lease=Lease(queue=queue, ref=seq, token=token + 1),
        lease_until=until,
        starts=starts + 1,
        position=str(seq),
        redelivered=bool(history) and any(entry.outcome is AttemptOutcome.INTERRUPTED for entry in history),
        history=history,
    )


def _histories(tx: Tx, seqs: list[int]) -> dict[int, tuple[Attempt, ...]]:
    found: dict[int, tuple[Attempt, ...]] = {}
    if seqs:
        for seq, entry in tx.execute(sql.SELECT_ATTEMPTS, (numbers(seqs),)).fetchall():
            found[seq] = (*found.get(seq, ()), attempt_from(entry))
    return found


# ---------------------------------------------------------------------------------------------------- settle


class InHand(NamedTuple):
    """One row of redrive_leased, with the token and the attempts of its claim where it has one."""

    seq: int
    token: int
    queue_id: int
    priority: int
    starts: int
    entries: int
    claim_id: int | None
    claim_token: int | None
    claim_attempts: int | None


def in_hand(tx: Tx, seqs: Iterable[int]) -> dict[int, InHand]:
    """The leases of these messages that exist, by seq."""
    rows = tx.execute(sql.SELECT_LEASED, (numbers(list(seqs)),)).fetchall()
    return {row[0]: InHand._make(row) for row in rows}


def settle(tx: Tx, batch: Sequence[Settle]) -> list[bool]:
    """End deliveries whose lease is current; what becomes of claims and letters is the caller's business."""
    leases = in_hand(tx, (each.lease.ref for each in batch))
    current: list[Move] = []
    settled = []
    for each in batch:
        row = leases.get(each.lease.ref)
        is_current = row is not None and row.token == each.lease.token
        if row is not None and is_current:
            del leases[each.lease.ref]
            current.append((row, each.lease.queue, each.settlement, each.entry))
        settled.append(is_current)
    move(tx, current)
    return settled


Move = tuple[InHand, str, settlement.Settlement, Attempt | None]
"""A delivery in hand, its queue, how it ends, and its history entry."""


_GONE: Final = (settlement.Ack, settlement.DeadLetter)


def move(tx: Tx, ends: Sequence[Move]) -> None:
    """Carry out settlements whose fences were checked: remove, or put back where the due time says."""
    if not ends:
        return
    removed: list[InHand] = []
    waiting: list[tuple[int, ...]] = []
    entries: list[tuple[int, int, str]] = []
    bodies: list[tuple[int, bytes]] = []
    for row, name, end, entry in ends:
        if isinstance(end, _GONE):
            removed.append(row)
            continue
        starts = row.starts
        if isinstance(end, settlement.Requeue):
            starts -= 1
        elif end.body is not None:
            bodies.append((row.seq, end.body))
        if entry is not None:
            entries.append((row.seq, row.entries, attempt_text(entry)))
        count = row.entries + (entry is not None)
        waiting.append((row.queue_id, row.priority, end.due_at, row.seq, starts, row.token, count))
        tx.wake(name)
    _charge(tx, ends)
    tx.execute(sql.DELETE_LEASED, (numbers([end[0].seq for end in ends]),))
    _remove(tx, removed)
    _insert_waiting(tx, waiting)
    insert_rows(tx.connection, sql.INSERT_ATTEMPTS, entries)
    insert_rows(tx.connection, sql.INSERT_REWRITTEN, bodies)


def _charge(tx: Tx, ends: Sequence[Move]) -> None:
    """Where a fair queue counts time instead of starts, count it while the leases still stand."""
    for name, fair in tx.fair.items():
        if fair.cost is not None:
            turns.charge(tx, [row.seq for row, queue, _, _ in ends if queue == name], fair.step_for)


def _remove(tx: Tx, removed: Sequence[InHand]) -> None:
    if not removed:
        return
    seqs = numbers([row.seq for row in removed])
    tx.execute(sql.DELETE_MESSAGES, (seqs,))
    tx.execute(sql.DELETE_REWRITTEN, (seqs,))
    with_history = [row.seq for row in removed if row.entries]
    if with_history:
        tx.execute(sql.DELETE_ATTEMPTS, (numbers(with_history),))


def renew(tx: Tx, batch: Sequence[Lease], *, lease_ms: Millis) -> list[bool]:
    """Current leases end `lease_ms` from now."""
    leases = in_hand(tx, (each.ref for each in batch))
    held = [each.ref in leases and leases[each.ref].token == each.token for each in batch]
    extend(tx, [each.ref for each, is_held in zip(batch, held, strict=True) if is_held], lease_ms=lease_ms)
    return held


def extend(tx: Tx, seqs: list[int], *, lease_ms: Millis) -> None:
    """Leases, by seq, end `lease_ms` from now."""
    tx.execute(
        "UPDATE redrive_leased SET lease_until = ? WHERE seq IN (SELECT value FROM json_each(?))",
        (tx.now + lease_ms, numbers(seqs)),
    )


# ---------------------------------------------------------------------------------------------------- looking

_DEPTHS: Final = """
SELECT q.name,
  (SELECT count(*) FROM redrive_ready r WHERE r.queue_id = q.id),
  (SELECT count(*) FROM redrive_scheduled s WHERE s.queue_id = q.id AND s.due_at <= :now),
  (SELECT count(*) FROM redrive_scheduled s WHERE s.queue_id = q.id AND s.due_at > :now),
  (SELECT count(*) FROM redrive_leased l WHERE l.queue_id = q.id AND l.lease_until <= :now),
  (SELECT count(*) FROM redrive_leased l WHERE l.queue_id = q.id AND l.lease_until > :now),
  (SELECT min(due_at) FROM redrive_ready r WHERE r.queue_id = q.id),
  (SELECT min(due_at) FROM redrive_scheduled s WHERE s.queue_id = q.id AND s.due_at <= :now),
  (SELECT min(lease_until) FROM redrive_leased l WHERE l.queue_id = q.id AND l.lease_until <= :now)
FROM redrive_queue q WHERE q.declared_at IS NOT NULL"""

_DEAD_DEPTHS: Final = (
    "SELECT dead_letter_queue, count(*), min(dead_lettered_at) FROM redrive_letter WHERE state <= 1 "
    "GROUP BY dead_letter_queue"
)


def depths(connection: sqlite3.Connection, now: UnixMs) -> list[Depth]:
    """All queues, and every dead-letter queue with its open letters as ready. What can be handed out is ready."""
    found: dict[str, Depth] = {}
    for name, ready, due, scheduled, ended, leased, *oldest in connection.execute(_DEPTHS, {"now": now}):
        queue = text_out(name)
        oldest_at = min((at for at in oldest if at is not None), default=None)
        found[queue] = Depth(
            queue=queue, ready=ready + due + ended, scheduled=scheduled, leased=leased, oldest_ready_at=oldest_at
        )
    for name, count, oldest_at in connection.execute(_DEAD_DEPTHS):
        queue = text_out(name)
        base = found.get(queue) or Depth(queue=queue, ready=0, scheduled=0, leased=0)
        found[queue] = Depth(
            queue=queue,
            ready=base.ready + count,
            scheduled=base.scheduled,
            leased=base.leased,
            oldest_ready_at=min((at for at in (base.oldest_ready_at, oldest_at) if at is not None), default=None),
        )
    return [found[name] for name in sorted(found)]


_PEEK: Final = """
SELECT m.message_id, m.key, m.tenant, m.priority, m.published_at, m.expires_at, m.content_type, m.headers, m.properties,
  m.body, w.body, m.seq
FROM (
  SELECT * FROM (SELECT 0 AS later, priority, due_at, seq FROM redrive_ready
    WHERE queue_id = :id ORDER BY priority, due_at, seq LIMIT :ready)
  UNION ALL SELECT * FROM (SELECT 0, priority, due_at, seq FROM redrive_scheduled
    WHERE queue_id = :id AND due_at <= :now ORDER BY due_at, seq LIMIT :limit)
  UNION ALL SELECT * FROM (SELECT 0, priority, due_at, seq FROM redrive_leased
    WHERE queue_id = :id AND lease_until <= :now ORDER BY priority, due_at, seq LIMIT :limit)
  UNION ALL SELECT * FROM (SELECT 1, 0, due_at, seq FROM redrive_scheduled
    WHERE queue_id = :id AND due_at > :now ORDER BY due_at, seq LIMIT :limit)
) p JOIN redrive_message m ON m.seq = p.seq LEFT JOIN redrive_rewritten w ON w.seq = p.seq
ORDER BY p.later, p.priority, p.due_at, p.seq LIMIT :limit"""

_PEEK_DEAD: Final = """
SELECT l.message_id, l.key, l.tenant, c.priority, c.published_at, c.message_expires_at, c.content_type, c.headers,
  c.properties, COALESCE(c.original, c.body), CASE WHEN c.original IS NULL THEN NULL ELSE c.body END
FROM redrive_letter l JOIN redrive_letter_content c ON c.seq = l.seq
WHERE l.dead_letter_queue = ? AND l.state <= 1 ORDER BY l.dead_lettered_at, l.seq LIMIT ?"""


_PEEK_THESE: Final = """
SELECT m.message_id, m.key, m.tenant, m.priority, m.published_at, m.expires_at, m.content_type, m.headers, m.properties,
  m.body, w.body, m.seq
FROM json_each(?) j CROSS JOIN redrive_message m ON m.seq = j.value LEFT JOIN redrive_rewritten w ON w.seq = m.seq"""


def peek(
    connection: sqlite3.Connection, queue: str, *, limit: int, now: UnixMs, fair: Fair | None = None
) -> list[Message]:
    """Ready messages in hand-over order, then scheduled ones by due time; of a dead-letter queue its open letters.
    `fair`: how turns are taken in the queue, if this process knows.
    """
    rows = _waiting(connection, queue, limit=limit, now=now, fair=fair)
    if len(rows) < limit:
        rows += connection.execute(_PEEK_DEAD, (text_in(queue), limit - len(rows))).fetchall()
    return [message_from(row, 0) for row in rows]


def _waiting(
    connection: sqlite3.Connection, queue: str, *, limit: int, now: UnixMs, fair: Fair | None = None
) -> list[Any]:
    queue_id = find_queue(connection, queue)
    if queue_id is None:
        return []
    rows: list[Any] = []
    places = {"id": queue_id, "limit": limit, "ready": limit, "now": now}
    if turns.is_fair(connection, queue_id):
        seqs = turns.preview(connection, queue_id, fair or Fair(), limit=limit)
        rows = connection.execute(_PEEK_THESE, (numbers(seqs),)).fetchall()
        places |= {"limit": limit - len(rows), "ready": 0}
    return [*rows, *connection.execute(_PEEK, places).fetchall()]


def discard(tx: Tx, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
    """Delete, of the first `limit` waiting messages, those of which `is_gone` says so."""
    rows = _waiting(tx.connection, queue, limit=limit, now=tx.now)
    seqs = numbers([row[-1] for row in rows if is_gone(message_from(row, 0))])
    for table in ("rewritten", "attempt", "ready", "scheduled", "leased"):
        tx.execute(f"DELETE FROM redrive_{table} WHERE seq IN (SELECT value FROM json_each(?))", (seqs,))  # noqa: S608
    return tx.execute(sql.DELETE_MESSAGES, (seqs,)).rowcount


def delete(tx: Tx, name: str) -> None:
    """The queue no longer exists and its messages are gone; its name stays known to claims and letters."""
    queue_id = find_queue(tx.connection, name)
    if queue_id is None:
        return
    for table in ("rewritten", "attempt"):
        tx.execute(
            f"DELETE FROM redrive_{table} WHERE seq IN (SELECT seq FROM redrive_message WHERE queue_id = ?)",  # noqa: S608
            (queue_id,),
        )
    for table in ("ready", "scheduled", "leased", "message", "fair", "turn", "window"):
        tx.execute(f"DELETE FROM redrive_{table} WHERE queue_id = ?", (queue_id,))  # noqa: S608 - constants
    tx.execute("UPDATE redrive_queue SET declared_at = NULL WHERE id = ?", (queue_id,))
    tx.wake(name)
