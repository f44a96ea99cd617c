"""Places: fairness for brokers that order a queue by one whole number given to each message once.

BullMQ serves the smallest priority first, equal ones by age, and whoever works on the queue (also a worker that knows
nothing of fairness) serves it in that order. So a message's priority is its place in virtual time: one step behind the
message of its tenant before it, and no earlier than virtual time, the place of the message that was started last. It
is start-time fair queueing as in `fairness`, decided when a message is placed instead of when it is taken.

    tenant A   1 ── 17 ── 33 ── 49 ── …         100 000 messages: 100 000 places
    tenant B         17 (came while 17 was being served)

Messages that others published without a place are placed in the order in which they lie there, by the same function.

Places end (`LIMIT`): before virtual time comes near, everything that waits moves back by the same amount (`rebase_by`).
A tenant whose backlog reaches the limit has its last messages there, all at one place, in their order; that is
`LIMIT // UNIT` messages deep at weight 1.

What a place cannot do: be decided anew. The limit in a row holds for tenants that are known to wait when a message is
placed. A message that waits for a due time keeps the place it got, so whoever makes it ready has to place it then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from redrive.core.policy.fair import Fair

LIMIT: Final = 2_097_151
"""The largest priority BullMQ takes (2^21 - 1); 0 is none, which is served before all others."""

UNIT: Final = 16
"""One start of a tenant of weight 1."""

REBASE_AT: Final = LIMIT // 4
"""Virtual time from which on places should be moved back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places of one queue. `now`: virtual time. `ends`: where the next message of a group would go, of those
    groups that are ahead of virtual time; all others are forgotten.
    """

    now: int = 1
    ends: Mapping[str, int] = field(default_factory=dict)


def placed(places: Places, groups: Sequence[str], fair: Fair) -> tuple[Places, list[int]]:
    """The places of messages of these groups, in this order, and what is known after it."""
    ends = dict(places.ends)
    found: list[int] = []
    for group in groups:
        place = max(places.now, ends.get(group, 1))
        ends[group] = min(LIMIT, place + _step(group, place, ends, fair=fair))
        found.append(place)
    return Places(now=places.now, ends=ends), found


def started(places: Places, place: int) -> Places:
    """After the message at this place was started; a place that was passed already changes nothing."""
    now = max(places.now, place)
    return Places(now=now, ends={group: end for group, end in places.ends.items() if end > now})


def rebase_by(places: Places) -> int:
    """By how much everything should be moved back now; 0: not yet."""
    return places.now - 1 if places.now >= REBASE_AT else 0


def rebased(places: Places, by: int) -> Places:
    """The places after everything moved back."""
    return Places(now=rebased_place(places.now, by), ends={name: end - by for name, end in places.ends.items()})


def rebased_place(place: int, by: int) -> int:
    """Where a waiting message that lies at `place` goes. Its order among those ahead of virtual time stays."""
    return max(1, place - by)


def step_at(weight: float) -> int:
    """How far one start moves a tenant of this weight, in places."""
    return max(1, round(UNIT / weight))


def _step(group: str, place: int, ends: Mapping[str, int], *, fair: Fair) -> int:
    """The group's step, so that of the two groups that start most often neither is passed more than `batch` times."""
    own = step_at(fair.weights.get(group, 1.0))
    if not fair.weights and fair.batch > 1:
        return own
    others = sorted(
        step_at(fair.weights.get(other, 1.0)) for other, end in ends.items() if end > place and other != group
    )
    if not others:
        return own
    least = others[0]
    # A run of the other group lasts from one message of ours to the next: within so many places it has no more.
    reach = max(1, fair.batch * least - 1)
    if own > reach and not any(other <= reach for other in others[1:]):
        return reach
    return max(own, -(-(least + 1) // fair.batch)) if own < least else own
