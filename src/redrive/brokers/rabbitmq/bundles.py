"""Bundles: the fair queues of one app, and their sorters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from redrive.brokers.rabbitmq.address import Address
from redrive.brokers.rabbitmq.connection import Lane
from redrive.brokers.rabbitmq.declaring import Declarer
from redrive.brokers.rabbitmq.publishing import Publisher
from redrive.brokers.rabbitmq.sorter import Means, Round, Sorter
from redrive.core.policy.fair import Fair
from redrive.core.ports import Clock
from redrive.core.topology.bundle import Bundle, bundle_of
from redrive.errors import UnsupportedError

HEARTBEAT_S: Final = 10


class Bundles:
    """By queue. `fair` may change while it is used; a queue that comes into it later is not fair here."""

    def __init__(self, fair: Mapping[str, Fair], *, address: Address, clock: Clock) -> None:
        self.queues: Collection[str] = frozenset(fair)
        """Those that are fair."""
        self._fair = fair
        self._last = dict(fair)
        self._clock = clock
        self._sorters: dict[str, Sorter] = {}
        # Whoever sorts and is cut off without a word is missed sooner than others are.
        heartbeat_s = min(address.heartbeat_s, HEARTBEAT_S)
        self._lane = Lane(replace(address, heartbeat_s=heartbeat_s), clock=clock, purpose="turns")
        self._publisher = Publisher(self._lane, timeout_ms=address.publish_timeout_ms)

    @property
    def inner(self) -> frozenset[str]:
        """All queues that are only parts."""
        return frozenset(name for queue in self.queues for name in bundle_of(queue).inner)

    def check(self) -> None:
        """Raises `UnsupportedError` for a `Fair` that this broker cannot keep."""
        for name, fair in self._fair.items():
            for field, is_set in (("concurrency", fair.has_concurrency), ("cost", fair.cost is not None)):
                if is_set:
                    raise UnsupportedError(
                        f'Queue "{name}": RabbitMQ takes turns between tenants, but has no fair.{field}. '
                        "Nothing was consumed or published.",
                        hint=f"Leave {field} out of Fair(...), or use sqlite:///.",
                    )

    def of(self, queue: str) -> Bundle | None:
        """Its bundle; None: it is not fair."""
        return bundle_of(queue) if queue in self.queues else None

    async def ensure(self, queue: str, declarer: Declarer, *, anew: bool = False) -> None:
        """All queues of the bundle are there once this returns. `anew`: though they were there before."""
        for name in (queue, *bundle_of(queue).inner):
            if anew:
                declarer.forget(name)
            await declarer.ensure(name)

    def sort(self, queue: str, declarer: Declarer) -> None:
        """Try to sort this queue from now on."""
        if queue not in self._sorters:
            means = Means(
                lane=self._lane,
                publisher=self._publisher,
                clock=self._clock,
                fair=partial(self._fair_of, queue),
                ensure=partial(self.ensure, queue, declarer, anew=True),
            )
            self._sorters[queue] = Sorter(bundle_of(queue), means)
            self._sorters[queue].start()

    def round_of(self, queue: str) -> Round | None:
        """What this process holds of the queue as its sorter; None where it is not."""
        sorter = self._sorters.get(queue)
        return None if sorter is None else sorter.round

    async def close(self) -> None:
        """Stop sorting: others begin within a moment."""
        for sorter in self._sorters.values():
            await sorter.close()
        self._sorters.clear()
        await self._publisher.close()
        await self._lane.close()

    def _fair_of(self, queue: str) -> Fair:
        found = self._last[queue] = self._fair.get(queue, self._last[queue])
        return found
