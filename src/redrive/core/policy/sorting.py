"""Desk: what the sorter of a fair queue holds, whose turn it is, and what has to go aside. Decides, and does nothing.

Messages come from *sources*, queues in order of age, of which so many are held at once as their *window* allows; what
lies behind is not seen. So that one tenant's backlog does not hide the others, no tenant may hold more than its part
of a window that is nearly full (`_allowed`): else all that is held of it goes *aside*, into a queue that is a source,
too. What comes of that tenant afterwards goes there as well, until all that lies aside was read back. So at any time
what lies aside of a tenant is older than all of it that lies elsewhere, also where the sorter died and what it held is
back in its source: within a tenant nothing overtakes.

    source ──> held, by tenant ──turn──> out
                 │         ^
                 └─> aside ┘      (own: of one tenant at a time; shared: by a hash, where no own one is free)

Who begins anew (`found`) knows of an own aside that it is of the tenant of its first message. Of a shared one it knows
only how many messages lie there: until so many were read, every tenant that hashes to it counts as moved aside.

While all that was held of a tenant is on its way into an own aside and back, it is *away*: it waits for its turn all
the same, so nothing that would come after it goes out before it is back (at most `AWAY_MS`: it may not come). A tenant
that comes new does not wait for one that had its start.

A tenant's own rate is a sliding window. Who begins anew counts it as used up a moment ago: too few starts for one
period, never too many.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, Generic, TypeVar

from redrive.core.policy import flow
from redrive.core.policy.fair import Fair
from redrive.core.policy.fairness import Scheduler
from redrive.core.policy.flow import Rate, Window
from redrive.core.units import Millis, UnixMs

T = TypeVar("T")

FULL: Final = (3, 4)
"""A window counts as nearly full from this part on."""
AWAY_MS: Final[Millis] = 2_000
"""How long the turn of a tenant that is away is waited for. As a rule it is back after two round trips."""


class Held(Generic[T]):
    """One message that is held, and from where."""

    __slots__ = ("group", "source", "what")

    def __init__(self, source: str, group: str, what: T) -> None:
        self.source = source
        self.group = group
        self.what = what


class Desk(Generic[T]):
    """See the module. `windows`: how many are held at once, by source, asides included. `shared_of`: the shared aside
    of a group. `fair` may change at any time.
    """

    def __init__(
        self,
        windows: Mapping[str, int],
        *,
        own: Collection[str],
        shared: Collection[str],
        shared_of: Callable[[str], str],
        fair: Callable[[], Fair],
        began_at: UnixMs,
    ) -> None:
        self._windows = windows
        self._own = tuple(own)
        self._asides = frozenset((*own, *shared))
        self._shared_of = shared_of
        self._fair = fair
        self._began_at = began_at
        self._scheduler = Scheduler(batch=fair().batch, step_for=lambda group: fair().step_for(group))
        self._waiting: dict[str, deque[Held[T]]] = {}
        self._held: Counter[str] = Counter()
        self._by_source: dict[str, Counter[str]] = {}
        self._where: dict[str, str] = {}
        self._left: Counter[str] = Counter()
        self._read_back: Counter[str] = Counter()
        self._found: dict[str, int] = {}
        self._rates: dict[str, Window] = {}
        self._until: dict[str, UnixMs] = {}
        self._away: dict[str, UnixMs | None] = {}
        self._is_held_up = False
        self.moves: deque[tuple[Held[T], str]] = deque()
        """What has to go aside and where, in this order. The caller takes it out, and calls `ended` for each."""

    @property
    def count(self) -> int:
        """Messages that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    @property
    def can_start(self) -> bool:
        """Whether anything waits that is held back neither by its tenant's rate nor by the turn of one that is away."""
        return not self._is_held_up and len(self._waiting) > len(self._until)

    # ------------------------------------------------------------------------------------------- what comes

    def found(self, aside: str, count: int) -> None:
        """So many messages lay in this aside at the start. Before anything arrives."""
        if count:
            self._found[aside] = count

    @property
    def is_ready(self) -> bool:
        """Whether it is known whose the own asides are: before that nothing may be read from the other sources."""
        return not any(aside in self._found for aside in self._own)

    def arrived(self, held: Held[T]) -> None:
        """A message was read. It waits from now on, or is among `moves`."""
        self._held[held.source] += 1
        group = held.group
        if held.source in self._asides:
            self._read(held.source, group)
            self._wait(held)
        elif (aside := self._aside_of(group)) is not None:
            if not self._left[group]:
                self._put_all_aside(group, aside)
            self._put_aside(held, aside)
        else:
            self._wait(held)
            self._make_room(held.source, group)

    def _read(self, aside: str, group: str) -> None:
        """Count what was read back."""
        if aside in self._found:
            left = self._found.pop(aside) - 1
            if aside in self._own and group not in self._where:
                # What lies behind it there is of the same tenant.
                self._where[group], self._left[group], self._read_back[group] = aside, left, 1
            elif aside not in self._own:
                if left:
                    self._found[aside] = left
                if self._where.setdefault(group, aside) == aside:
                    self._read_back[group] += 1
        elif self._where.get(group) == aside:
            self._left[group] = max(0, self._left[group] - 1)
            self._read_back[group] += 1

    def _wait(self, held: Held[T]) -> None:
        waiting = self._waiting.get(held.group)
        if waiting is None:
            waiting = self._waiting[held.group] = deque()
        waiting.append(held)
        self._count(held, 1)
        self._away.pop(held.group, None)
        self._is_held_up = False
        if held.group not in self._until:
            self._scheduler.wait(held.group)

    def _count(self, held: Held[T], change: int) -> None:
        counts = self._by_source.setdefault(held.source, Counter())
        counts[held.group] += change
        if not counts[held.group]:
            del counts[held.group]

    # ------------------------------------------------------------------------------------------- aside

    def _aside_of(self, group: str) -> str | None:
        """Where further messages of this group have to go; None: it has nothing lying aside."""
        where, shared = self._where.get(group), self._shared_of(group)
        if where is not None and self._left[group]:
            return where
        return shared if shared in self._found and where in (None, shared) else None

    def _put_aside(self, held: Held[T], aside: str) -> None:
        self._where[held.group] = aside
        self._left[held.group] += 1
        self.moves.append((held, aside))

    def _make_room(self, source: str, group: str) -> None:
        """Put this group aside, where it holds more of the source than its part."""
        part, whole = FULL
        if source in self._asides or self._held[source] * whole < self._windows[source] * part:
            return
        counts = self._by_source.get(source, Counter())
        if counts[group] <= self._allowed(source, group, len(counts)):
            return
        self._put_all_aside(group, self._where.get(group) or self._free_aside(group))

    def _put_all_aside(self, group: str, aside: str) -> None:
        """All that is held of this group. What was read back stays: it is older than what lies there."""
        waiting = self._waiting.get(group)
        if waiting is None:
            return
        stay = [each for each in waiting if each.source in self._asides]
        for each in waiting:
            if each.source not in self._asides:
                self._count(each, -1)
                self._put_aside(each, aside)
        waiting.clear()
        waiting.extend(stay)
        if not waiting:
            if aside in self._own and group not in self._until:
                self._away[group] = None
            self._forget(group)

    def _allowed(self, source: str, group: str, groups: int) -> int:
        """How many messages of a window that is nearly full one group may hold: its part of half of it. Where there are
        more groups than that, one each, and none of a group that had its start in this round. A group that waits for
        its rate has no part: of those there may be more than the window holds.
        """
        if group in self._until:
            return 0
        part = self._windows[source] // (2 * max(1, groups))
        return part or int(not self._scheduler.is_ahead(group))

    def _free_aside(self, group: str) -> str:
        taken = {*self._where.values(), *self._found}
        return next((aside for aside in self._own if aside not in taken), self._shared_of(group))

    # ------------------------------------------------------------------------------------------- what goes

    def take(self, limit: int, now: UnixMs) -> list[Held[T]]:
        """Whose turn it is now: at most `limit`, in order. The caller calls `ended` for each."""
        self._scheduler.batch = self._fair().batch
        for group in [group for group, until in self._until.items() if until <= now]:
            del self._until[group]
            self._scheduler.wait(group)
        self._wait_for_away(now)
        taken = []
        starts = self._scheduler.take(limit, lambda group: self._room(group, now), away=self._away)
        self._is_held_up = bool(self._away) and len(starts) < limit
        for group in starts:
            held = self._waiting[group].popleft()
            self._count(held, -1)
            self._start(group, now)
            taken.append(held)
        for group in {held.group for held in taken}:
            if not self._waiting[group]:
                self._forget(group)
        return taken

    def _wait_for_away(self, now: UnixMs) -> None:
        for group, until in list(self._away.items()):
            if until is None:
                self._away[group] = now + AWAY_MS
            elif until <= now:
                del self._away[group]

    def next_at(self) -> UnixMs | None:
        """When something may go on that is held back; None: nothing is."""
        ends = [until for until in self._away.values() if until is not None]
        return min((*self._until.values(), *ends), default=None)

    def ended(self, held: Held[T]) -> None:
        """It is where it was sent to, and acknowledged at its source."""
        self._held[held.source] -= 1
        group = held.group
        if self._where.get(group) == held.source:
            self._read_back[group] -= 1
        if group in self._where and not self._left[group] and not self._read_back[group]:
            # Nothing of it lies in its aside any more, not even unacknowledged.
            del self._where[group], self._left[group], self._read_back[group]

    def _forget(self, group: str) -> None:
        del self._waiting[group]
        self._until.pop(group, None)

    def _room(self, group: str, now: UnixMs) -> int:
        waiting = self._waiting.get(group)
        if not waiting:
            return 0
        rate = self._fair().rate_of(group)
        if rate is None:
            return len(waiting)
        window = self._rates[group] = self._window(group, rate)
        room = flow.room(window, now)
        if not room:
            self._until[group] = flow.free_at(window, now)
            for source in {held.source for held in waiting}:
                if group in self._waiting:
                    self._make_room(source, group)
        return min(room, len(waiting))

    def _window(self, group: str, rate: Rate) -> Window:
        known = self._rates.get(group)
        if known is None:
            return flow.started(Window(rate=rate), rate.count, self._began_at)
        return known if known.rate == rate else flow.window_of(rate, flow.window_numbers(known))

    def _start(self, group: str, now: UnixMs) -> None:
        if group in self._rates:
            self._rates[group] = flow.started(self._rates[group], 1, now)
            if len(self._rates) > _MAX_RATES:
                self._drop_rates(now)

    def _drop_rates(self, now: UnixMs) -> None:
        """Forget those that are as good as new ones; a new one is not used up any more by then."""
        for group, window in list(self._rates.items()):
            unused = flow.started(Window(rate=window.rate), window.rate.count, self._began_at)
            if max(flow.forgotten_at(window), flow.forgotten_at(unused)) <= now:
                del self._rates[group]

    # ------------------------------------------------------------------------------------------- looking

    def preview(self) -> list[Held[T]]:
        """What waits, in the order in which turns would be taken; rates play no part."""
        places = dict.fromkeys(self._waiting, 0)
        shown = []
        for group in self._scheduler.preview({group: len(waiting) for group, waiting in self._waiting.items()}):
            shown.append(self._waiting[group][places[group]])
            places[group] += 1
        return shown

    def remove(self, gone: Callable[[Held[T]], bool]) -> list[Held[T]]:
        """Let go of those that wait and are gone. The caller calls `ended` for each."""
        removed: list[Held[T]] = []
        for group, waiting in list(self._waiting.items()):
            stay = deque(held for held in waiting if not gone(held))
            if len(stay) < len(waiting):
                kept = set(map(id, stay))
                removed += [held for held in waiting if id(held) not in kept]
                self._waiting[group] = stay
                if not stay:
                    self._forget(group)
        for held in removed:
            self._count(held, -1)
        return removed


_MAX_RATES: Final = 10_000
