"""Label values stay bounded: the busiest few keep their own name, all others share one.

A time series that appears for every tenant, host or error text kills the monitoring before the outage does. And a
counter may never go down: so when a busier name takes the place of a quieter one, what the quieter one had counted
moves to `other`, and the newcomer starts from zero (what it counted before is in `other` already). Every series only
grows while it is shown, and the sum over all of them is exact at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OTHER: Final = "other"
NONE: Final = "-"
"""Shown for a message without a tenant."""
MAX_LABEL_CHARS: Final = 64
WATCHED_PER_SLOT: Final = 16
"""How many names are counted for each that is shown, in order to find the busiest."""
TAKEOVER: Final = 2
"""A newcomer must be this many times busier than the quietest shown, so that two equals do not swap for ever."""


class TopCounter:
    """Counts by name, with at most `slots` names shown and the rest under `other`. Not thread-safe."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._shown: dict[str, int] = {}
        self._recent: dict[str, int] = {}
        self._other = 0

    def add(self, name: str | None, count: int = 1) -> None:
        """Count `count` for `name` (None: the name `-`)."""
        recent = self._recent
        # A name that was counted is a label already: nothing of it has to be looked at again.
        label = name if name in recent and name is not None else label_text(name)
        recent[label] = recent.get(label, 0) + count
        if len(recent) > self.slots * WATCHED_PER_SLOT:
            self._forget_quiet()
        if label in self._shown:
            self._shown[label] += count
        elif len(self._shown) < self.slots:
            self._shown[label] = count
        else:
            self._other += count

    def items(self) -> list[tuple[str, int]]:
        """Name and count, `other` last where there is any; after letting busier names in."""
        self._promote()
        rest = [(OTHER, self._other)] if self._other else []
        return [*self._shown.items(), *rest]

    def _forget_quiet(self) -> None:
        busiest = sorted(self._recent.items(), key=lambda entry: entry[1], reverse=True)
        self._recent = dict(busiest[: len(busiest) // 2])

    def _promote(self) -> None:
        waiting = sorted(
            ((count, name) for name, count in self._recent.items() if name not in self._shown), reverse=True
        )
        for count, name in waiting:
            quietest = min(self._shown, key=lambda shown: self._recent.get(shown, 0))
            if count <= TAKEOVER * self._recent.get(quietest, 0):
                return
            self._other += self._shown.pop(quietest)
            self._shown[name] = 0


class StickyTop:
    """Of names that are counted elsewhere, the `slots` that are shown: the first come, until one that is not shown has
    become clearly busier than the quietest. Calling it gives the name to show. Not thread-safe.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._shown: set[str] = set()

    def choose(self, counts: Mapping[str, float]) -> None:
        """Let the busiest in; one that is counted no more leaves its place."""
        self._shown &= counts.keys()
        for name in sorted(counts.keys() - self._shown - {OTHER}, key=lambda name: (-counts[name], name)):
            if len(self._shown) < self._slots:
                self._shown.add(name)
                continue
            quietest = min(self._shown, key=lambda shown: (counts[shown], shown))
            if counts[name] <= TAKEOVER * counts[quietest]:
                return
            self._shown.remove(quietest)
            self._shown.add(name)

    def __call__(self, name: str) -> str:
        """The name itself where it is shown, else `other`."""
        return name if name in self._shown else OTHER


class BoundedNames:
    """The first `slots` names keep theirs, later ones are `other`. For names an operator chose: queues, sources."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._known: set[str] = set()

    def __call__(self, name: str | None) -> str:
        """The label to count `name` under."""
        if name in self._known:
            return name
        label = label_text(name)
        if label in self._known:
            return label
        if len(self._known) >= self._slots:
            return OTHER
        self._known.add(label)
        return label


def label_text(name: str | None) -> str:
    """A name as a label value: `-` for none, cut to a bounded length, always encodable, never taken for `other`."""
    if name is None or not name.strip():
        return NONE
    if name == OTHER:
        return f"{OTHER}_"
    text = name if name.isascii() else name.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1] + "…"
