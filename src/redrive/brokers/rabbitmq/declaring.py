"""Declarer: sees to it that queues are there before something is published to them or consumed from them.

A queue that exists is taken as it is, whatever its arguments: it is asked for passively first, and never forced. One
that does not is made: as the topology says, else in the default safe shape, a quorum queue out of which the broker
moves messages only with a confirm, and beside it `<queue>.dead` for what the broker gives up by itself.

What is known to exist is remembered until the connection is lost or a message comes back unroutable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final

from redrive.brokers.rabbitmq.connection import Lane
from redrive.brokers.rabbitmq.failures import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    ChannelLost,
    LinkLost,
    named_in,
    refused_queue,
    unavailable,
)
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.core.topology.fit import LIMITED_SINCE, for_version, major
from redrive.core.topology.ladder import LEVELS, PREFIX, SAFE, Level, has_ladder, is_level
from redrive.core.topology.model import Binding, Exchange, Queue, QueueType, Topology
from redrive.core.topology.names import MAX_NAME_BYTES, check_names, name_bytes
from redrive.core.units import Millis
from redrive.errors import ConfigurationError, RedriveError

DEAD: Final = ".dead"
MAX_SPOKEN_BYTES: Final = 150
"""Queue and virtual host that surely fit into the 255 bytes of a refusal."""
INTERNAL_ERROR: Final = "541"
FILLED_MS: Final[Millis] = 60_000
"""Once the delay ladder is used, its levels up to this long are made in the background: about a hundred. Beside a
longer delay the time it takes to make its level (10 to 50 ms) is nothing.
"""
FILLED_AT_ONCE: Final = 5
"""So many in a row: a level that is needed at once waits for no more."""


def default_shape(queue: str) -> Topology:
    """A consumer queue of which the topology says nothing, and its dead-letter queue."""
    dead = f"{queue}{DEAD}"
    if queue.endswith(DEAD) or name_bytes(dead) > MAX_NAME_BYTES:
        return Topology(queues=(Queue(name=queue, arguments={"x-queue-type": "quorum"}),))
    arguments = {**SAFE, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    return Topology(
        queues=(
            Queue(name=dead, arguments={"x-queue-type": "quorum"}),
            Queue(name=queue, arguments=arguments),
        )
    )


class Declarer:
    """Knows which queues are there. All methods belong to one event loop."""

    def __init__(self, lane: Lane, topology: Topology, *, wait_ms: Millis, inner: Collection[str] = ()) -> None:
        """`wait_ms`: how long a declare waits for a connection that is being made again. `inner`: queues of the
        topology that are parts of others, and are not `seen`.
        """
        self._inner = frozenset(inner)
        self._wait_ms = wait_ms
        self._lane = lane
        self._topology = topology
        self._version: str | None = None
        self._there: set[str] = set()
        self._levels: set[int] = set()
        self._filling: asyncio.Task[None] | None = None
        self._is_declared = False
        self._turns: dict[str, asyncio.Lock] = {}
        self._dead_letter_queues = {wiring.dead_letter_queue for wiring in topology.wirings}
        self.seen: set[str] = {each.name for each in topology.queues if not is_level(each.name)} - self._inner
        """Every queue this process has had to do with."""

    # ------------------------------------------------------------------------------------------- what is there

    async def ensure(self, queue: str) -> None:
        """The queue is there once this returns. Raises `ConfigurationError` where the user may not make it."""
        if queue in self._there:
            return
        async with self._turns.setdefault(queue, asyncio.Lock()):
            if queue not in self._there:
                await self._declare_topology()
                if not await self.exists(queue):
                    await self._make(queue)
                self._there.add(queue)
                if queue not in self._inner:
                    self.seen.add(queue)

    async def exists(self, queue: str) -> bool:
        """Whether the broker has it now. One that is exclusive to another connection is there, too."""
        found = []
        async with self._channel(queue, doing="looked at", allowed=(NOT_FOUND,)) as channel:
            try:
                found.append(await channel.declare_queue(queue, passive=True))
            except ChannelLost as lost:
                if lost.code == RESOURCE_LOCKED:
                    return True
                raise
        return bool(found)

    async def look(self, queue: str) -> tuple[int, int] | None:
        """How many messages are ready there, and how many consumers; None where there is no such queue."""
        found: list[tuple[int, int]] = []
        async with self._channel(queue, doing="looked at", allowed=(NOT_FOUND,)) as channel:
            found.append(await channel.declare_queue(queue, passive=True))
        return found[0] if found else None

    async def look_at_all(self, queues: Collection[str]) -> tuple[int, int]:
        """How many messages are ready in all of these, and how many consumers they have."""
        ready = consumers = 0
        try:
            async with self._channel("", doing="looked at", raw=True) as channel:
                for queue in queues:
                    more = await channel.declare_queue(queue, passive=True)
                    ready, consumers = ready + more[0], consumers + more[1]
        except ChannelLost:
            found = [await self.look(queue) for queue in queues]
            there = [each for each in found if each is not None]
            return sum(each[0] for each in there), sum(each[1] for each in there)
        return ready, consumers

    def forget(self, name: str) -> None:
        """This queue, or exchange of a level, may be gone: look again before the next use."""
        self._there.discard(name)
        if is_level(name):
            self._levels.discard(int(name.removeprefix(PREFIX)))

    def forget_all(self) -> None:
        """The connection was lost: the broker may be another one now."""
        self._there.clear()
        self._levels.clear()
        self._is_declared = False
        self.close()

    def close(self) -> None:
        """Make nothing more in the background."""
        if self._filling is not None:
            self._filling.cancel()
            self._filling = None

    async def _make(self, queue: str) -> None:
        shape = self._part(queue) or self._default(queue)
        async with self._channel(queue, doing="made", allowed=(PRECONDITION_FAILED,)) as channel:
            # Refused as different: somebody else has just made it, and it is taken as it is.
            await self._send(channel, shape)

    def _default(self, queue: str) -> Topology:
        if queue in self._dead_letter_queues:
            return Topology(queues=(Queue(name=queue, arguments={"x-queue-type": "quorum"}),))
        return default_shape(queue)

    def _part(self, queue: str) -> Topology | None:
        """The topology as far as it is about this queue."""
        queues = tuple(each for each in self._topology.queues if each.name == queue)
        if not queues:
            return None
        bindings = tuple(
            each for each in self._topology.bindings if each.destination == queue and each.destination_type == "queue"
        )
        return Topology(queues=queues, bindings=bindings)

    # ------------------------------------------------------------------------------------------- the topology

    async def open(self) -> None:
        """Declare the topology. Raises `ConfigurationError` where the broker has something of the same name that is
        different, or cannot do what is asked for.
        """
        check_names(self._topology)
        await self._declare_topology()

    async def _declare_topology(self) -> None:
        if self._is_declared or self._topology == Topology():
            return
        async with self._turns.setdefault("", asyncio.Lock()):
            if not self._is_declared:
                await self._declare_all()
                self._is_declared = True

    async def _declare_all(self) -> None:
        link = await self._lane.get(wait_ms=self._wait_ms)
        _check_priorities(self._topology, link.version)
        try:
            async with self._channel("", doing="made", raw=True) as channel:
                await self._send(channel, self._topology)
        except ChannelLost as lost:
            raise _different(lost) from lost
        self._there.update(each.name for each in self._topology.queues)
        if has_ladder(self._topology):
            self._levels.update(level.delay_ms for level in LEVELS)

    async def _send(self, channel: Channel, topology: Topology) -> None:
        wanted = for_version(topology, channel.link.version)
        for exchange in wanted.exchanges:
            channel.send_exchange(exchange)
        for queue in wanted.queues:
            channel.send_queue(queue)
        for binding in wanted.bindings:
            channel.send_binding(binding)
        # Answered once all of the above is done.
        await channel.qos(0)

    # ------------------------------------------------------------------------------------------- the ladder

    async def ensure_levels(self, levels: Iterable[Level]) -> None:
        """These levels of the delay ladder are there once this returns."""
        missing = [level for level in levels if level.delay_ms not in self._levels]
        if not missing:
            return
        await self._make_levels(missing)
        if self._filling is None:
            self._filling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        """Make the levels of short delays in the background: who needs one later need not wait until it is made."""
        short = [level for level in LEVELS if level.delay_ms <= FILLED_MS]
        with suppress(RedriveError):
            for start in range(0, len(short), FILLED_AT_ONCE):
                await self._make_levels(short[start : start + FILLED_AT_ONCE])

    async def _make_levels(self, levels: Collection[Level]) -> None:
        async with self._turns.setdefault("redrive.delay", asyncio.Lock()):
            await self._declare_topology()
            missing = [level for level in levels if level.delay_ms not in self._levels]
            try:
                await self._send_levels(missing)
            except ChannelLost:
                # One of them is refused; the others are made all the same.
                for level in missing:
                    await self._make_level(level)
            self._levels.update(level.delay_ms for level in missing)

    async def _send_levels(self, levels: Collection[Level]) -> None:
        if levels:
            async with self._channel(next(iter(levels)).name, doing="made", raw=True) as channel:
                await self._send(channel, _ladder(levels))

    async def _make_level(self, level: Level) -> None:
        try:
            await self._send_levels([level])
        except ChannelLost as lost:
            # One made by a broker of another version has no delivery limit, or has one: nobody consumes from it.
            if lost.code != PRECONDITION_FAILED or "x-delivery-limit" not in lost.text:
                raise refused_queue(level.name, lost, doing="made") from lost

    # ------------------------------------------------------------------------------------------- channels

    @asynccontextmanager
    async def _channel(
        self, queue: str, *, doing: str, allowed: Collection[int] = (), raw: bool = False
    ) -> AsyncIterator[Channel]:
        """A channel for one question. An answer in `allowed` ends the block early; every other refusal is raised."""
        try:
            async with self._link_for(queue) as link:
                channel = await Channel(link).open()
                try:
                    yield channel
                finally:
                    await channel.close()
        except ChannelLost as lost:
            if raw:
                raise
            if lost.code not in allowed:
                raise refused_queue(queue, lost, doing=doing) from lost
        except LinkLost as lost:
            if not (allowed and lost.text.startswith(INTERNAL_ERROR) and self._is_unspeakable(queue)):
                raise unavailable(self._lane.where, lost.text) from lost

    @asynccontextmanager
    async def _link_for(self, queue: str) -> AsyncIterator[Link]:
        if self._is_unspeakable(queue):
            async with self._lane.aside() as link:
                yield link
        else:
            yield await self._lane.get(wait_ms=self._wait_ms)

    def _is_unspeakable(self, queue: str) -> bool:
        """Whether the broker would cut the name in the middle of a character when it refuses the queue. It then closes
        the whole connection with 541 instead (measured on 4.0.5), so such a question is asked on another one.
        """
        return not queue.isascii() and name_bytes(queue) + name_bytes(self._lane.vhost) > MAX_SPOKEN_BYTES


def _ladder(levels: Iterable[Level]) -> Topology:
    """Exchange, queue and binding of each level."""
    names = {level.name: level.delay_ms for level in levels}
    return Topology(
        exchanges=tuple(Exchange(name=name, type="fanout") for name in names),
        queues=tuple(
            Queue(name=name, arguments={**SAFE, "x-message-ttl": delay_ms, "x-dead-letter-exchange": ""})
            for name, delay_ms in names.items()
        ),
        bindings=tuple(Binding(source=name, destination=name) for name in names),
    )


def _check_priorities(topology: Topology, version: str | None) -> None:
    """A quorum queue before 4.0 refuses priorities with a text that does not say since when they are there."""
    if version is None or major(version) >= LIMITED_SINCE:
        return
    for queue in topology.queues:
        if queue.type is QueueType.QUORUM and "x-max-priority" in queue.arguments:
            raise ConfigurationError(
                f'Queue "{queue.name}" is a quorum queue with x-max-priority; RabbitMQ {version} has no priorities on '
                "quorum queues. Nothing was declared.",
                hint="Use RabbitMQ 4.0 or newer, a classic queue, or one queue per priority.",
            )


def _different(lost: ChannelLost) -> RedriveError:
    name = named_in(lost.text) or "?"
    if lost.code == PRECONDITION_FAILED:
        return ConfigurationError(
            f'"{name}" is on the broker with other settings than the topology has: {lost.text}. It was left as it is; '
            "what comes after it in the topology was not declared.",
            hint="See what differs and what a change would do: redrive topology plan",
        )
    return refused_queue(name, lost, doing="declared")
