"""Turns between tenants on BullMQ's queues: what `turns.lua` has to know of a queue's `Fair`.

A job's priority is its place in virtual time (see `redrive.core.policy.places`), decided by the server in the call that
adds, takes or hands back the job. So whoever works on the queue serves it in turns, Node's workers too.

A tenant's own limits are kept by redrive's workers alone (see `limits.lua`): to BullMQ what is over them waits like all
else, behind it. Turns by measured time are refused when the broker is opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from redrive.brokers.bullmq.keys import Keys
from redrive.brokers.bullmq.rates import window_of
from redrive.core.policy.fair import Fair
from redrive.core.policy.fairness import NO_TENANT, TenantRecord, group_of, priority
from redrive.core.policy.places import UNIT, step_at
from redrive.core.policy.standing import Standing
from redrive.errors import UnsupportedError
from redrive.redis.scripts import packed

NO_TURNS: Final = b""
GROUP: Final = "rdt"
"""The field of a job that names its tenant's group; absent for `-`."""
COUNTED_AT_ONCE: Final = 1_000
"""Jobs in one look at who waits."""


class Turns:
    """By queue, what the scripts are told. `fair` may change while it is used."""

    def __init__(self, fair: Mapping[str, Fair] | None) -> None:
        self._fair: Mapping[str, Fair] = {} if fair is None else fair
        self._told: dict[str, tuple[Fair, bytes]] = {}

    def told(self, queue: str) -> bytes:
        """Of this queue, by the name people see, the argument of the scripts."""
        fair = self._fair.get(queue)
        if fair is None:
            return NO_TURNS
        known = self._told.get(queue)
        if known is None or known[0] is not fair:
            known = self._told[queue] = fair, packed_fair(fair)
        return known[1]

    def told_of_ends(self, queue: str) -> tuple[bytes, int]:
        """The last arguments of `settle.lua`: as `told`, and whether an end may make room for a tenant."""
        fair = self._fair.get(queue)
        return self.told(queue), 1 if fair is not None and fair.concurrency else 0

    def check(self) -> None:
        """Raises `UnsupportedError` for a `Fair` that this broker cannot keep."""
        for name, fair in self._fair.items():
            if fair.cost is not None:
                raise UnsupportedError(
                    f'Queue "{name}": Redis takes turns between tenants by their starts, it has no fair.cost. '
                    "Nothing was consumed or published.",
                    hint="Leave cost out of Fair(...), or use sqlite:///.",
                )


def packed_fair(fair: Fair) -> bytes:
    """`fair` of `openTurns`."""
    steps = {group: step_at(weight) for group, weight in fair.weights.items()}
    rates: Any = fair.rate or {}
    windows = {group: window_of(rate) for group, rate in rates.items()}
    is_uneven = bool(fair.weights) or fair.batch == 1
    return packed([fair.batch, steps, is_uneven, windows, fair.concurrency or {}, fair.tenant_field or ""])


def group_fields(tenant: str | None) -> list[str | bytes]:
    """The field of a job that says whose turn it takes."""
    group = group_of(tenant)
    return [] if group == NO_TENANT else [GROUP, group]


async def standings(look: Callable[[int, int], Awaitable[Any]], *, limit: int) -> list[Standing]:
    """The groups that wait or were served, the longest backlog first. `look`: `standings.lua` on a part of the queue,
    by its first and last place. Jobs of others that were not placed yet are not counted.
    """
    waiting: dict[bytes, int] = {}
    first: dict[bytes, int] = {}
    start = 0
    while True:
        now, seen, found, served, last, run = await look(start, start + COUNTED_AT_ONCE - 1)
        for group, count, place in zip(found[::3], found[1::3], found[2::3], strict=True):
            waiting[group] = waiting.get(group, 0) + count
            first.setdefault(group, place)
        start += COUNTED_AT_ONCE
        if seen < COUNTED_AT_ONCE:
            break
    starts = dict(zip(served[::2], served[1::2], strict=True))
    groups = sorted({*waiting, *starts}, key=lambda group: (-waiting.get(group, 0), group))
    return [
        Standing(
            name=group.decode("utf-8", "surrogatepass"),
            waiting=waiting.get(group, 0),
            record=_record(
                starts.get(group, b"0 0"), max(0, now - first.get(group, now)) // UNIT, run * (group == last)
            ),
        )
        for group in groups[:limit]
    ]


def _record(served: bytes, rounds: int, run: int) -> TenantRecord:
    total, at = map(int, served.split())
    return TenantRecord(
        last_processed_at=at or None,
        rounds_without_processing=rounds,
        current_priority=priority(rounds),
        total_processed=total,
        consecutive_batch_count=run,
    )


def part_of(keys: Keys, first: int, last: int) -> tuple[list[str], list[Any]]:
    """KEYS and ARGV of `standings.lua`."""
    return [keys["prioritized"]], [keys.base, first, last]
