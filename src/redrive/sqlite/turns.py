"""Turns: which messages of a fair queue are next. Every function runs inside the caller's transaction.

The tables are described in sql/003_fairness.sql and kept by its triggers, whoever publishes or takes; the arithmetic is
`core.policy.fairness`. One look reads the first few groups by place, never the messages that wait behind them, so a
backlog of any length costs nothing. All processes on the file share the places, so the order of starts is one for all.

The first fair look at a queue makes it fair: what is ready already is sorted into groups, once.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from redrive.core.policy import fairness, flow
from redrive.core.policy.fair import Fair
from redrive.core.policy.fairness import SCALE, VirtualTime
from redrive.core.policy.flow import Window
from redrive.core.policy.standing import Standing
from redrive.core.units import Millis, UnixMs
from redrive.sqlite import windows
from redrive.sqlite.values import numbers, pieces, size_for, text_out, values_list
from redrive.sqlite.writer import Tx

FULL_MS: Final[Millis] = 20
"""How soon a tenant that has as much in hand as it may is looked at again, by whoever has nothing else to do."""

_IDLE, _WAITING, _HELD, _FULL = range(4)
"""States of redrive_turn. Held: by its rate. Full: by its concurrency, which every look asks anew."""

_FORGET_EVERY: Final = 64
"""Groups that have nothing are forgotten with every message whose number is a multiple of this."""

GROUPS_PER_STEP: Final = 64
"""Groups whose messages are found by one statement; made for powers of two, so that few of them stay prepared."""

_GROUP: Final = "COALESCE(m.turn_group, m.tenant, '-')"
# Virtual time, and of the first waiting groups: id, name, place, waiting, and the first message.
_NEXT: Final = (
    "SELECT f.virtual_now, f.last_turn, f.run, t.id, t.name, t.place, t.waiting, (SELECT r.seq FROM "  # noqa: S608 - constants
    "redrive_turn_ready r WHERE r.turn_id = t.id ORDER BY r.priority, r.due_at, r.seq LIMIT 1) FROM redrive_fair f "
    f"LEFT JOIN redrive_turn t ON t.queue_id = f.queue_id AND t.state = {_WAITING} "
    "WHERE f.queue_id = ? ORDER BY t.place, t.id LIMIT ?"
)
_MAKE_FAIR: Final = (
    "INSERT INTO redrive_fair (queue_id, virtual_now, last_turn, run, mean_cost) VALUES (?, 0, 0, 0, 0)",
    (
        "INSERT INTO redrive_turn (queue_id, name, state, place, waiting, held_until, started) "  # noqa: S608 - constants
        f"SELECT r.queue_id, {_GROUP}, {_WAITING}, 0, count(*), 0, 0 FROM redrive_ready r "
        "CROSS JOIN redrive_message m ON m.seq = r.seq WHERE r.queue_id = ? GROUP BY 2 ORDER BY min(r.seq)"
    ),
    (
        "INSERT INTO redrive_turn_ready (seq, turn_id, priority, due_at) SELECT r.seq, t.id, r.priority, r.due_at "  # noqa: S608 - constants
        "FROM redrive_ready r CROSS JOIN redrive_message m ON m.seq = r.seq "
        f"CROSS JOIN redrive_turn t ON t.queue_id = r.queue_id AND t.name = {_GROUP} WHERE r.queue_id = ?"
    ),
)
_SEQS_OF_ONE: Final = (
    "SELECT turn_id, seq FROM redrive_turn_ready WHERE turn_id = ? ORDER BY priority, due_at, seq LIMIT ?"
)
_MOVE_ONE: Final = (
    "UPDATE redrive_turn SET place = ?1, started = started + ?2, started_at = ?3, waiting = waiting - ?2, "  # noqa: S608 - constants
    f"state = CASE waiting WHEN ?2 THEN {_IDLE} ELSE state END WHERE id = ?4"
)
_MOVE_TIME: Final = "UPDATE redrive_fair SET virtual_now = ?, last_turn = ?, run = ? WHERE queue_id = ?"
_FORGET: Final = f"DELETE FROM redrive_turn WHERE queue_id = ? AND state = {_IDLE} AND place <= ?"  # noqa: S608 - constants
_HOLD: Final = "UPDATE redrive_turn SET state = ?, held_until = ? WHERE id = ?"
_LET_GO: Final = (
    f"UPDATE redrive_turn SET state = {_WAITING}, "  # noqa: S608 - constants
    "place = max(place, (SELECT virtual_now FROM redrive_fair f WHERE f.queue_id = redrive_turn.queue_id)) "
)
_LET_HELD_GO: Final = f"{_LET_GO} WHERE queue_id = ? AND state = {_HELD} AND held_until <= ?"
_LET_FULL_GO: Final = f"{_LET_GO} WHERE queue_id = ? AND state = {_FULL}"
_IN_HAND: Final = (
    f"SELECT {_GROUP}, count(*) FROM redrive_leased l CROSS JOIN redrive_message m ON m.seq = l.seq "  # noqa: S608 - constants
    "WHERE l.queue_id = ? AND l.lease_until > ? GROUP BY 1"
)


def is_fair(connection: sqlite3.Connection, queue_id: int) -> bool:
    """Whether turns are taken in this queue."""
    return connection.execute("SELECT 1 FROM redrive_fair WHERE queue_id = ?", (queue_id,)).fetchone() is not None


def next_at(connection: sqlite3.Connection, queue_id: int) -> UnixMs | None:
    """When the next message of a fair queue may start, of those that are ready: 0 is now."""
    waiting = f"SELECT 1 FROM redrive_turn WHERE queue_id = ? AND state = {_WAITING} LIMIT 1"  # noqa: S608 - constants
    if connection.execute(waiting, (queue_id,)).fetchone():
        return 0
    held = f"SELECT min(held_until) FROM redrive_turn WHERE queue_id = ? AND state IN ({_HELD}, {_FULL})"  # noqa: S608 - constants
    found: UnixMs | None = connection.execute(held, (queue_id,)).fetchone()[0]
    return found


def choose(tx: Tx, queue_id: int, fair: Fair, *, limit: int) -> list[int]:
    """The messages (seq) that start next, in order; their groups have moved on by it. `take` them in this
    transaction.
    """
    if limit < 1:
        return []
    if limit == 1 and not (fair.has_rates or fair.has_concurrency):
        return _choose_one(tx, queue_id, fair)
    limits = _Limits(tx, queue_id, fair) if fair.has_rates or fair.has_concurrency else None
    rows = _next(tx, queue_id, limit + 1)
    at = VirtualTime(*rows[0][:3])
    if rows[0][3] is None:
        return []
    rooms = {row[3]: row[6] for row in rows} if limits is None else {}
    while limits is not None and len(rooms) < len(rows):
        # Where some were held, those behind them come into view.
        rooms = limits.rooms(rows)
        rows = rows if len(rooms) == len(rows) else _next(tx, queue_id, limit + 1)
        if rows[0][3] is None:
            return []
    steps = {row[3]: fair.step_for(text_out(row[4])) for row in rows} if fair.weights else {}
    turns = [(row[5], row[3], rooms[row[3]], steps.get(row[3], SCALE)) for row in rows]
    planned = fairness.plan(turns, at, limit=limit, batch=fair.batch)
    counts = Counter(planned.starts)
    _move(tx, planned.places, counts)
    tx.execute(_MOVE_TIME, (*planned.at, queue_id))
    if limits is not None:
        limits.count({text_out(row[4]): counts[row[3]] for row in rows if row[3] in counts})
    seqs = _seqs(tx.connection, planned.starts, counts, heads={row[3]: row[7] for row in rows})
    if any(seq % _FORGET_EVERY == 0 for seq in seqs):
        tx.execute(_FORGET, (queue_id, at.now))
    return seqs


def _choose_one(tx: Tx, queue_id: int, fair: Fair) -> list[int]:
    """As `choose`, for a worker with one free slot: as few statements as can be, because nothing shares their cost."""
    rows = _next(tx, queue_id, 2)
    at = VirtualTime(*rows[0][:3])
    if rows[0][3] is None:
        return []
    has_weights = bool(fair.weights)
    turns = [(row[5], row[3], 1, fair.step_for(text_out(row[4])) if has_weights else SCALE) for row in rows]
    planned = fairness.plan(turns, at, limit=1, batch=fair.batch)
    number = planned.starts[0]
    tx.execute(_MOVE_ONE, (planned.places[number], 1, tx.now, number))
    tx.execute(_MOVE_TIME, (*planned.at, queue_id))
    seq: int = rows[0 if rows[0][3] == number else 1][7]
    if seq % _FORGET_EVERY == 0:
        tx.execute(_FORGET, (queue_id, at.now))
    return [seq]


def take(tx: Tx, queue_id: int, messages: Sequence[tuple[int, int, int]]) -> None:
    """Delete these messages, as (priority, due_at, seq), from those that are ready; `choose` has counted them."""
    if len(messages) == 1:
        (place,) = messages
        tx.execute(_TAKE_ONE, (place[2],))
        tx.execute(_TAKE_ONE_READY, (queue_id, *place))
        return
    tx.execute(_TAKE, (numbers([seq for _, _, seq in messages]),))
    for piece in pieces(messages, 3):
        size = size_for(len(piece))
        given = [queue_id, *chain.from_iterable(piece), *(None,) * (3 * (size - len(piece)))]
        tx.execute(_take_statement(size), given)


_TAKE_ONE: Final = "DELETE FROM redrive_turn_ready WHERE seq = ?"
_TAKE_ONE_READY: Final = "DELETE FROM redrive_ready WHERE queue_id = ? AND priority = ? AND due_at = ? AND seq = ?"
_TAKE: Final = "DELETE FROM redrive_turn_ready WHERE seq IN (SELECT value FROM json_each(?))"


@cache
def _take_statement(size: int) -> str:
    return (
        "DELETE FROM redrive_ready WHERE (queue_id, priority, due_at, seq) IN "  # noqa: S608 - constants
        f"(SELECT ?, v.* FROM (VALUES {values_list(3, size)}) v)"
    )


def preview(connection: sqlite3.Connection, queue_id: int, fair: Fair, *, limit: int) -> list[int]:
    """The messages of a fair queue that would start next; nothing moves. Limits of tenants play no part."""
    rows = connection.execute(_NEXT, (queue_id, limit + 1)).fetchall()
    if limit < 1 or not rows or rows[0][3] is None:
        return []
    turns = [(row[5], row[3], row[6], fair.step_for(text_out(row[4]))) for row in rows]
    planned = fairness.plan(turns, VirtualTime(*rows[0][:3]), limit=limit, batch=fair.batch)
    return _seqs(connection, planned.starts, Counter(planned.starts), heads={row[3]: row[7] for row in rows})


def _next(tx: Tx, queue_id: int, limit: int) -> list[Any]:
    rows = tx.execute(_NEXT, (queue_id, limit)).fetchall()
    if not rows:
        for statement in _MAKE_FAIR:
            tx.execute(statement, (queue_id,))
        rows = tx.execute(_NEXT, (queue_id, limit)).fetchall()
    return rows


def _move(tx: Tx, places: dict[int, int], counts: Counter[int]) -> None:
    if len(places) == 1:
        ((number, place),) = places.items()
        tx.execute(_MOVE_ONE, (place, counts[number], tx.now, number))
        return
    for piece in pieces([(number, place, counts[number]) for number, place in places.items()], 3):
        size = size_for(len(piece))
        given = [tx.now, *chain.from_iterable(piece), *(None,) * (3 * (size - len(piece)))]
        tx.execute(_move_statement(size), given)


@cache
def _move_statement(size: int) -> str:
    return (
        "UPDATE redrive_turn SET place = v.column2, started = started + v.column3, started_at = ?, "  # noqa: S608 - constants
        f"waiting = waiting - v.column3, state = CASE waiting WHEN v.column3 THEN {_IDLE} ELSE state END "
        f"FROM (VALUES {values_list(3, size)}) v WHERE redrive_turn.id = v.column1"
    )


def _seqs(
    connection: sqlite3.Connection, starts: Sequence[int], counts: Counter[int], *, heads: dict[int, int]
) -> list[int]:
    """The messages behind these starts, in their order; `heads` are the first ones of the groups."""
    found = {number: [heads[number]] if count == 1 else [] for number, count in counts.items()}
    each = [(number, count) for number, count in counts.items() if count > 1]
    for first in range(0, len(each), GROUPS_PER_STEP):
        piece = each[first : first + GROUPS_PER_STEP]
        size = 1 << (len(piece) - 1).bit_length()
        given = [*chain.from_iterable(piece), *(0, 0) * (size - len(piece))]
        for number, seq in connection.execute(_seqs_statement(size), given).fetchall():
            found[number].append(seq)
    ordered = {number: iter(seqs) for number, seqs in found.items()}
    return [next(ordered[number]) for number in starts]


@cache
def _seqs_statement(size: int) -> str:
    return " UNION ALL ".join([f"SELECT * FROM ({_SEQS_OF_ONE})"] * size)  # noqa: S608 - constants


# ---------------------------------------------------------------------------------------------------- limits


class _Limits:
    """The tenants' own limits within one look."""

    def __init__(self, tx: Tx, queue_id: int, fair: Fair) -> None:
        self._tx = tx
        self._queue_id = queue_id
        self._fair = fair
        self._windows: dict[str, Window] = {}
        self._in_hand: dict[str, int] = {}
        if fair.has_rates:
            tx.execute(_LET_HELD_GO, (queue_id, tx.now))
        if fair.has_concurrency:
            tx.execute(_LET_FULL_GO, (queue_id,))
            rows = tx.execute(_IN_HAND, (queue_id, tx.now)).fetchall()
            self._in_hand = {text_out(name): count for name, count in rows}

    def rooms(self, rows: Sequence[Any]) -> dict[int, int]:
        """How many of each of these groups may start now; one without room is held and left out."""
        found = {row[3]: self._room(row[3], text_out(row[4]), row[6]) for row in rows}
        return {number: room for number, room in found.items() if room > 0}

    def _room(self, number: int, name: str, waiting: int) -> int:
        limit, rate = self._fair.concurrency_of(name), self._fair.rate_of(name)
        if limit is not None:
            waiting = min(waiting, limit - self._in_hand.get(name, 0))
            if waiting <= 0:
                self._tx.execute(_HOLD, (_FULL, self._tx.now + FULL_MS, number))
        if rate is not None and waiting > 0:
            window = self._windows[name] = windows.read(self._tx, self._queue_id, rate, name=name)
            waiting = min(waiting, flow.room(window, self._tx.now))
            if waiting <= 0:
                self._tx.execute(_HOLD, (_HELD, flow.free_at(window, self._tx.now), number))
        return waiting

    def count(self, starts: dict[str, int]) -> None:
        """So many of each start now."""
        for name, count in starts.items():
            window = self._windows.get(name)
            if window is not None:
                windows.write(self._tx, self._queue_id, window, name=name, count=count)
        if self._windows:
            windows.forget(self._tx, self._queue_id)


# ---------------------------------------------------------------------------------------------------- costs

_COSTS: Final = (
    f"SELECT l.queue_id, ? - l.started_at, {_GROUP} FROM json_each(?) j "  # noqa: S608 - constants
    "CROSS JOIN redrive_leased l ON l.seq = j.value CROSS JOIN redrive_message m ON m.seq = l.seq"
)
_MEAN: Final = "SELECT mean_cost FROM redrive_fair WHERE queue_id = ?"
_KEEP_MEAN: Final = "UPDATE redrive_fair SET mean_cost = ? WHERE queue_id = ?"
_CHARGE: Final = "UPDATE redrive_turn SET place = place + ? WHERE queue_id = ? AND name = ?"


def charge(tx: Tx, seqs: list[int], step_for: Callable[[str], int]) -> None:
    """Count the time that these deliveries of one queue, still in hand, did take."""
    rows = tx.execute(_COSTS, (tx.now, numbers(seqs))).fetchall()
    if not rows:
        return
    queue_id = rows[0][0]
    stored = tx.execute(_MEAN, (queue_id,)).fetchone()
    if stored is None:
        return
    mean = stored[0]
    moves: Counter[Any] = Counter()
    for _, took_ms, name in rows:
        cost = max(1.0, took_ms)
        mean = fairness.mean_after(mean, cost)
        moves[name] += fairness.charged(0, step_for(text_out(name)), cost=cost / mean)
    tx.execute(_KEEP_MEAN, (mean, queue_id))
    for name, move in moves.items():
        tx.execute(_CHARGE, (move, queue_id, name))


# ---------------------------------------------------------------------------------------------------- looking


_STANDINGS: Final = (
    "SELECT f.virtual_now, f.last_turn, f.run, t.id, t.name, t.place, t.waiting, t.started, t.started_at "
    "FROM redrive_fair f CROSS JOIN redrive_turn t ON t.queue_id = f.queue_id WHERE f.queue_id = ? "
    "ORDER BY t.waiting DESC, t.id LIMIT ?"
)


def standings(connection: sqlite3.Connection, queue_id: int, *, limit: int) -> list[Standing]:
    """The groups that wait or did so lately, the longest backlog first."""
    return [
        Standing(
            name=text_out(name),
            waiting=waiting,
            record=fairness.record_of(
                place, number, VirtualTime(*at), waits=waiting > 0, served_at=started_at, total=started
            ),
        )
        for *at, number, name, place, waiting, started, started_at in connection.execute(_STANDINGS, (queue_id, limit))
    ]
