"""Fairness: whose turn it is. Start-time fair queueing in whole numbers, as arithmetic on given values.

Every tenant with waiting messages has a *place*: the virtual time at which its next message is to start. The tenant
with the smallest place is next, the older one of two. A start moves its tenant's place on by one *step* (`SCALE`
divided by the tenant's weight) and virtual time to the place that was served. A tenant that comes (back) gets the
later of virtual time and the place it had: it neither waits behind a backlog nor is paid for the time it was away.

    virtual time ──┬────────────┬───────────> places
       quiet tenant: here       noisy tenant: its 100 000 messages are one place, one step further at each start

On top of it no tenant starts more than `batch` times in a row while another one waits: then the second smallest place
is served. A tenant that is passed over for that keeps a claim of one step of weight 1 and no more, so that nobody can
save up turns and then starve the others.

What holds, and `tests/unit/policy/test_fairness.py` tries to break:
- nothing is idle while something waits (work-conserving);
- within a tenant nothing is reordered;
- of starts in a row no more than `batch` are of one tenant while another waits;
- shares of tenants that always wait are as their weights, as far as `batch` allows;
- a waiting tenant starts after at most `starts_before` other starts, plus one for each tenant that is new meanwhile;
  of these no more than `SCALE // LEAST_ADVANCE`, because virtual time moves on at every start.

Memory: a tenant without messages is forgotten once virtual time has passed its place, which takes no more than
`SCALE // LEAST_ADVANCE` starts at weight 1.

Source: Goyal, Vin, Cheng, "Start-time fair queueing" (SIGCOMM 1996); system E, Fairness, for the limit in a row.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from redrive.core.text import cut

SCALE: Final = 1 << 20
"""One start of a tenant of weight 1, in units of virtual time."""

LEAST_ADVANCE: Final = 1 << 4
"""Virtual time moves on by so much at every start, whatever comes new: nobody waits behind newcomers for ever."""

NO_TENANT: Final = "-"
"""The group of all messages without a tenant; a tenant of that name shares it."""

MAX_GROUP_BYTES: Final = 256
"""Longer tenants are told apart by their beginning."""

MIN_WEIGHT: Final = 0.01
MAX_WEIGHT: Final = 100.0


def group_of(tenant: object) -> str:
    """The group a message takes its turns with.

    None and blank text are `-`; numbers count as their digits, bytes as UTF-8; capitals make a difference; blanks
    around a name do not. Text over `MAX_GROUP_BYTES` is cut.

    >>> [group_of(tenant) for tenant in (None, "  ", 42, "42", b"A", "Acme", "acme")]
    ['-', '-', '42', '42', 'A', 'Acme', 'acme']
    """
    if tenant is None:
        return NO_TENANT
    if not isinstance(tenant, str):
        tenant = tenant.decode("utf-8", "replace") if isinstance(tenant, bytes) else str(tenant)
    return cut(tenant.strip(), MAX_GROUP_BYTES) or NO_TENANT


def step_of(weight: float) -> int:
    """How far one start moves a tenant of this weight."""
    return max(1, round(SCALE / weight))


# ------------------------------------------------------------------------------------------------ whose turn


class VirtualTime(NamedTuple):
    """`now`: the place served last. `last`: number of the group that started last (0: none), `run` times in a row."""

    now: int = 0
    last: int = 0
    run: int = 0


class Turn(NamedTuple):
    """A group with waiting messages: its place, its number (smaller: known for longer), how many of its messages may
    start now (1 or more), and its step.
    """

    place: int
    number: int
    room: int
    step: int


class Plan(NamedTuple):
    """`starts`: numbers of groups in the order in which their next messages start. `places`: of those groups, after
    it. `at`: virtual time after it.
    """

    starts: list[int]
    places: dict[int, int]
    at: VirtualTime


def plan(
    turns: Sequence[Turn | tuple[int, int, int, int]],
    at: VirtualTime,
    *,
    limit: int,
    batch: int,
    away: Collection[int] = (),
) -> Plan:
    """The next `limit` starts, or all there is room for, but none after the turn of a group that is `away`.

    Of the waiting groups it needs only the first `limit` + 1 by (place, number): each start moves one of them, and the
    limit in a row needs one to pass to.
    """
    heap: list[tuple[int, int, int, int]] = list(turns)
    heapq.heapify(heap)
    now, last, run = at
    starts: list[int] = []
    places: dict[int, int] = {}
    while heap and len(starts) < limit:
        turn = heapq.heappop(heap)
        if run >= batch and turn[1] == last and heap:
            turn = heapq.heapreplace(heap, turn)
        place, number, room, step = turn
        if number in away:
            break
        now += LEAST_ADVANCE
        now = max(now, place)
        run = run + 1 if number == last else 1
        last = number
        starts.append(number)
        places[number] = moved = place_after(place, step, now)
        if room > 1:
            heapq.heappush(heap, (moved, number, room - 1, step))
    return Plan(starts, places, VirtualTime(now, last, run))


def place_after(place: int, step: int, now: int) -> int:
    """The place of a group after a start: one step on, counted from no further back than one step of weight 1."""
    return max(place, now - SCALE) + step


def charged(place: int, step: int, *, cost: float) -> int:
    """The place of a group once the cost of a start is known, in units of the mean cost: dear messages count for
    more, cheap ones for less, each at most `MAX_COST` times.
    """
    return place + round(step * (min(max(cost, 1 / MAX_COST), MAX_COST) - 1))


MAX_COST: Final = 64.0
MEAN_SHIFT: Final = 64
"""The mean cost follows the last so many starts."""


def mean_after(mean: float, cost: float) -> float:
    """The mean cost (0: not known yet) after one more."""
    return cost if mean <= 0 else mean + (cost - mean) / MEAN_SHIFT


def starts_before(weight: float, others: Iterable[float]) -> int:
    """How many starts of the tenants that wait beside it (their weights) come at most before the next start of a
    waiting tenant of this weight: its place is at most one step of its own ahead of virtual time, theirs at most one
    of weight 1 behind it once they started.
    """
    own = step_of(weight)
    return sum((own + SCALE) // step_of(other) + 2 for other in others) + 1


# ------------------------------------------------------------------------------------------------ a scheduler


class _Group:
    """Changes in place, so it is no value."""

    __slots__ = ("number", "place", "step", "waits")

    def __init__(self, number: int, step: int, place: int) -> None:
        self.number = number
        self.step = step
        self.place = place
        self.waits = False


class Scheduler:
    """The groups of one queue in one process. It knows who waits, not what: ask `take` whose turn it is.

    `step_for`: the step of a group (see `step_of`).
    """

    def __init__(self, *, batch: int, step_for: Callable[[str], int]) -> None:
        self.batch = batch
        self._step_for = step_for
        self._groups: dict[str, _Group] = {}
        self._names: dict[int, str] = {}
        self._front: list[tuple[int, int]] = []
        self._numbers = 0
        self.at = VirtualTime()

    @property
    def known(self) -> int:
        """Groups that are remembered."""
        return len(self._groups)

    def wait(self, name: str) -> None:
        """This group has at least one message that may start."""
        group = self._groups.get(name)
        if group is None:
            self._numbers += 1
            group = _Group(self._numbers, self._step_for(name), self.at.now)
            self._groups[name], self._names[group.number] = group, name
        elif group.waits:
            return
        group.place = max(group.place, self.at.now)
        group.waits = True
        heapq.heappush(self._front, (group.place, group.number))

    def is_ahead(self, name: str) -> bool:
        """Whether this group had its start in this round: who waits and had none is served before it."""
        group = self._groups.get(name)
        return group is not None and group.place > self.at.now

    def take(self, limit: int, room: Callable[[str], int], *, away: Collection[str] = ()) -> list[str]:
        """The groups whose next messages start, in order; at most `limit`. `room`: how many of a group may start now;
        one with none is dropped until `wait` names it again. `away`: groups that wait, and whose messages are not at
        hand for the moment: where the turn is theirs, nobody starts.
        """
        turns = self._first(limit + 1, lambda name: 1 if name in away else room(name))
        absent = {self._groups[name].number for name in away if name in self._groups}
        planned = plan(list(turns.values()), self.at, limit=limit, batch=self.batch, away=absent)
        self.at = planned.at
        for number in turns:
            group = self._groups[self._names[number]]
            group.place = planned.places.get(number, group.place)
            heapq.heappush(self._front, (group.place, number))
        starts = [self._names[number] for number in planned.starts]
        self._forget()
        return starts

    def preview(self, rooms: Mapping[str, int]) -> list[str]:
        """In which order these groups would start so many messages each; nothing moves."""
        known = {name: self._groups.get(name) for name in rooms}
        turns = [
            Turn(
                self.at.now if group is None else max(group.place, 0 if group.waits else self.at.now),
                -place if group is None else group.number,
                rooms[name],
                self._step_for(name),
            )
            for place, (name, group) in enumerate(known.items(), 1)
            if rooms[name] > 0
        ]
        names = {turn.number: name for turn, name in zip(turns, (n for n in known if rooms[n] > 0), strict=True)}
        starts = plan(turns, self.at, limit=sum(rooms.values()), batch=self.batch).starts
        return [names[number] for number in starts]

    def _first(self, limit: int, room: Callable[[str], int]) -> dict[int, Turn]:
        turns: dict[int, Turn] = {}
        while self._front and len(turns) < limit:
            place, number = heapq.heappop(self._front)
            name = self._names.get(number, "")
            group = self._groups.get(name)
            if group is None or not group.waits or group.place != place or number in turns:
                continue
            count = room(name)
            if count > 0:
                turns[number] = Turn(place, number, count, group.step)
            else:
                group.waits = False
        return turns

    def charge(self, name: str, cost: float) -> None:
        """What a start of this group did cost, in units of the mean."""
        group = self._groups.get(name)
        if group is not None:
            group.place = charged(group.place, group.step, cost=cost)
            if group.waits:
                # The entry at the old place is void from now on.
                heapq.heappush(self._front, (group.place, group.number))

    def records(self) -> Mapping[str, TenantRecord]:
        """What is known of every group that waits or did so lately."""
        return {
            name: record_of(group.place, group.number, self.at, waits=group.waits)
            for name, group in self._groups.items()
        }

    def _forget(self) -> None:
        if len(self._groups) <= 2 * len(self._front) + _SLACK:
            return
        for name, group in list(self._groups.items()):
            if not group.waits and group.place <= self.at.now:
                del self._groups[name], self._names[group.number]


_SLACK: Final = 64


# ------------------------------------------------------------------------------------------------ what is reported

BASE_PRIORITY: Final = 5
PRIORITY_PER_ROUND: Final = 1
TOP_PRIORITY: Final = 1


def priority(
    rounds: int, *, base: int = BASE_PRIORITY, increment: int = PRIORITY_PER_ROUND, top: int = TOP_PRIORITY
) -> int:
    """The priority that is reported for a tenant after so many rounds without service; 1 is the most urgent.

    Source: system E, Fairness.

    >>> [priority(rounds) for rounds in (0, 1, 3, 4, 100)]
    [5, 4, 2, 1, 1]
    """
    return max(top, base - increment * rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    """What is reported of one tenant. A round is the virtual time in which every waiting tenant of weight 1 starts
    once: only one that is held back (by its own limits) is rounds behind.
    """

    last_processed_at: int | None = None
    rounds_without_processing: int = 0
    current_priority: int = BASE_PRIORITY
    total_processed: int = 0
    consecutive_batch_count: int = 0

    def document(self) -> dict[str, int | None]:
        """Under the names of system E."""
        return {
            "lastProcessedAt": self.last_processed_at,
            "roundsWithoutProcessing": self.rounds_without_processing,
            "currentPriority": self.current_priority,
            "totalProcessed": self.total_processed,
            "consecutiveBatchCount": self.consecutive_batch_count,
        }


def record_of(
    place: int, number: int, at: VirtualTime, *, waits: bool, served_at: int | None = None, total: int = 0
) -> TenantRecord:
    """The record of a group at this place."""
    rounds = max(0, at.now - place) // SCALE if waits else 0
    return TenantRecord(
        last_processed_at=served_at,
        rounds_without_processing=rounds,
        current_priority=priority(rounds),
        total_processed=total,
        consecutive_batch_count=at.run if number == at.last else 0,
    )
