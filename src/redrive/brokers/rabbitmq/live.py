"""RabbitLive: what people do with a RabbitMQ by hand. AMQP for everything that changes something or moves messages, the
management API for what AMQP cannot tell: bindings, policies, limits.

Where the API is not there, what AMQP tells is used and the rest is said to be unknown; a URL that was given for it, or
a user it refuses, is an error instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from redrive.brokers.rabbitmq.applying import Applier
from redrive.brokers.rabbitmq.failures import NOT_FOUND, ChannelLost, LinkLost, refused_queue
from redrive.brokers.rabbitmq.in_place import Resolve, Return, look
from redrive.brokers.rabbitmq.journal import Journal, default_journal, note_look
from redrive.brokers.rabbitmq.management import (
    Management,
    ManagementRefusedError,
    ManagementUnavailableError,
    management_url,
)
from redrive.brokers.rabbitmq.probing import probe_exchange, probe_queue
from redrive.brokers.rabbitmq.session import Session
from redrive.core.in_place import Route, Standing, look_refusal, recovered_route, route_to, wired_queue
from redrive.core.live import Look, Said, SendBack, SentBack, There, Waiting
from redrive.core.message import Headers
from redrive.core.ports import Clock
from redrive.core.topology.definitions import is_built_in
from redrive.core.topology.migration import Migration, MigrationStep, Move, holding_name
from redrive.core.topology.model import EMPTY, Binding, Queue, QueueType, Topology
from redrive.core.topology.plan import Plan
from redrive.core.topology.verify.effective import Policies, effective, parse_version
from redrive.errors import BrokerUnavailableError, ConfigurationError, QueueNotFoundError, UnsupportedError

PARKED: Final = ".dlq"
NOTE: Final = (
    "The management API was not asked, so policies are unknown and bindings are taken to be as wanted: AMQP can list "
    "neither. Queues and exchanges beyond the wanted ones are not known either."
)


class RabbitLive:
    """See `redrive.core.live.LiveBroker`."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        management: str | None = None,
        without_management: bool = False,
        journal: Path | None = None,
    ) -> None:
        """`management`: URL of the management API; None: where it is by habit. `journal`: file of redrives in place.

        Raises `ConfigurationError` for a URL that is none; no text made here holds a password.
        """
        self._clock = clock
        self._session = Session(url, clock=clock)
        address = self._session.address
        self._is_given = management is not None
        host, port = address.hosts[0]
        found = management_url(host, port, is_tls=address.tls is not None) if management is None else management
        self._management = (
            None if without_management else Management(found, login=(address.user, address.password), tls=address.tls)
        )
        self._journal = default_journal() if journal is None else journal
        self._applier = Applier(self._session, management=self._management, clock=clock, move=self._move)

    @property
    def place(self) -> str:
        return self._session.address.where

    @property
    def vhost(self) -> str:
        return self._session.address.vhost

    async def open(self) -> None:
        await self._session.open()

    async def close(self) -> None:
        await self._session.close()

    # ------------------------------------------------------------------------------------------- what is there

    async def there(self, want: Topology = EMPTY) -> There:
        if self._management is not None:
            try:
                return await self._listed(self._management)
            except ManagementUnavailableError:
                if self._is_given:
                    raise
        with self._broken():
            return await self._probed(want)

    async def _listed(self, management: Management) -> There:
        found = await management.definitions(self.vhost)
        flags = await management.feature_flags()
        return There(topology=replace(found.topology, feature_flags=flags), default_types=found.default_types)

    async def _probed(self, want: Topology) -> There:
        exchanges = [
            found
            for each in want.exchanges
            if not is_built_in(each.name) and (found := await probe_exchange(self._session, each)) is not None
        ]
        queues = [there for each in want.queues if (there := await probe_queue(self._session, each)) is not None]
        named = {each.name for each in exchanges}, {each.name for each in queues}
        topology = Topology(
            exchanges=tuple(exchanges),
            queues=tuple(queues),
            bindings=tuple(each for each in want.bindings if _has_ends(each, *named)),
            version=self._session.version,
        )
        return There(topology=topology, is_complete=False, notes=(NOTE,))

    # ------------------------------------------------------------------------------------------- changing it

    async def apply(self, plan: Plan, *, said: Said) -> None:
        await self._applier.apply(plan, said=said)

    async def bind(self, bindings: Sequence[Binding]) -> None:
        await self._applier.bind(bindings)

    async def migrate(self, migration: Migration, *, said: Callable[[MigrationStep], None]) -> None:
        await self._applier.migrate(migration, said=said)

    async def _move(self, move: Move) -> None:
        """Until the source is empty. The journal makes one copy of each, also around a kill."""
        route = Route(queue=move.target, exchange="", routing_key=move.target)
        subject = move.source if move.target == holding_name(move.source) else move.target
        while True:
            found = await self._session.counts(move.source)
            if found is None or found[0] == 0:
                return
            limit = found[0]
            if move.limit is not None:
                held = await self._session.counts(move.target)
                limit = min(limit, move.limit - (0 if held is None else held[0]))
            if limit <= 0:
                raise ConfigurationError(
                    f'Queue "{move.target}" holds at most {move.limit} messages and {found[0]} more are to go there. '
                    f'They stay in "{move.source}"; nothing is lost.',
                    hint="Make room, or a larger limit, and migrate again: it goes on from there.",
                )
            sent = await self._sent(
                move.source, SendBack(actor="migration", limit=limit, is_forced=True), lambda _: route, moved=subject
            )
            if sent.error is not None or sent.stayed:
                why = sent.error or sent.stayed[0].why
                raise BrokerUnavailableError(
                    f'Not every message could be moved from "{move.source}" to "{move.target}": {why}',
                    hint="Nothing is lost. Migrate again: it goes on from there.",
                )

    # ------------------------------------------------------------------------------------------- in place

    async def standing(self, queue: str) -> Standing:
        found = await self._standing(queue)
        if look_refusal(found) is not None or not found.depth:
            return found
        first = await self._looked(queue, 1, lambda _: "")
        return replace(found, oldest_at=first[0].dead_since) if first else found

    async def _standing(self, queue: str) -> Standing:
        counts = await self._session.counts(queue)
        if counts is None:
            raise self._no_queue(queue)
        ready, consumers = counts
        bare = Standing(queue=queue, depth=ready, consumers=consumers)
        if self._management is not None:
            try:
                return _with_limit(bare, (await self._listed(self._management)).topology)
            except (ManagementUnavailableError, ManagementRefusedError) as error:
                bare = replace(bare, note=error.text)
        with self._broken(queue):
            probed = await probe_queue(
                self._session, Queue(name=queue, arguments={"x-queue-type": str(QueueType.CLASSIC)})
            )
        kind = None if probed is None else probed.arguments.get("x-queue-type")
        return replace(bare, kind=next((each for each in QueueType if each == kind), None))

    async def look(self, queue: str, *, limit: int, topology: Topology = EMPTY, is_forced: bool = False) -> Look:
        standing = await self._standing(queue)
        refusal = look_refusal(standing)
        if refusal is not None and not is_forced:
            raise UnsupportedError(f"{refusal} Nothing was looked at.", hint=LOOK_HINT)
        resolve = await self._resolver(queue, topology, to=None)
        messages = await self._looked(queue, limit, resolve)
        oldest = messages[0].dead_since if messages else None
        return Look(standing=replace(standing, oldest_at=oldest), messages=messages)

    async def _looked(self, queue: str, limit: int, resolve: Resolve) -> tuple[Waiting, ...]:
        await asyncio.to_thread(note_look, self._journal, broker=self.place, queue=queue)
        with self._broken(queue):
            return await look(self._session, queue, limit=limit, resolve=resolve)

    async def send_back(
        self, queue: str, what: SendBack, *, topology: Topology, on_count: Callable[[int], None]
    ) -> SentBack:
        resolve = await self._resolver(queue, topology, to=what.to)
        if await self._session.counts(queue) is None:
            raise self._no_queue(queue)
        return await self._sent(queue, what, resolve, topology=topology, on_count=on_count)

    async def _sent(
        self,
        queue: str,
        what: SendBack,
        resolve: Resolve,
        *,
        topology: Topology = EMPTY,
        on_count: Callable[[int], None] | None = None,
        moved: str | None = None,
    ) -> SentBack:
        journal = await asyncio.to_thread(Journal, self._journal, broker=self.place, queue=queue)
        run = Return(self._session, journal, clock=self._clock, topology=topology, resolve=resolve, moved=moved)
        try:
            with self._broken(queue):
                return await run.run(queue, what, on_count=on_count or (lambda _: None))
        finally:
            await asyncio.to_thread(journal.close)

    async def _resolver(self, queue: str, topology: Topology, *, to: str | None) -> Resolve:
        """Where its messages go back to: the topology knows, else what redrive would have named its queues."""
        base = queue.removesuffix(PARKED)
        is_parked = base != queue and not topology.wirings and await self._has_parking(base)
        exchanges, queues = ({f"retry.{base}"}, {f"{base}.retry"}) if is_parked else (set[str](), set[str]())

        def resolve(headers: Headers) -> Route | str:
            target = to or wired_queue(headers, queue, topology)
            if target is None and is_parked:
                target = base
            if target is None:
                return "it does not say which queue it came from (say where to with --to QUEUE)"
            if topology.wiring(target) is not None:
                return route_to(target, topology)
            return recovered_route(target, queue, exchanges=exchanges, queues=queues)

        return resolve

    async def _has_parking(self, base: str) -> bool:
        return (
            await self._session.has_exchange(f"retry.{base}")
            and await self._session.counts(f"{base}.retry") is not None
        )

    def _no_queue(self, queue: str) -> QueueNotFoundError:
        return QueueNotFoundError(f'Queue "{queue}" is not on the broker ({self.place}). Nothing was changed.')

    @contextmanager
    def _broken(self, queue: str = "") -> Iterator[None]:
        """What breaks inside is an error of redrive's outside."""
        try:
            yield
        except ChannelLost as lost:
            if lost.code == NOT_FOUND:
                raise self._no_queue(queue) from lost
            raise refused_queue(queue, lost, doing="worked on") from lost
        except LinkLost as lost:
            raise self._session.broken(lost) from lost


LOOK_HINT: Final = (
    "Redrive it as it is (redrive dlq redrive), or say --force to look all the same. A dead-letter queue that can be "
    "looked at is a classic queue, or a quorum queue with x-delivery-limit -1 (RabbitMQ 4) or without one (3.x)."
)


def _has_ends(binding: Binding, exchanges: set[str], queues: set[str]) -> bool:
    ends = queues if binding.destination_type == "queue" else exchanges
    return binding.destination in ends and (binding.source in exchanges or is_built_in(binding.source))


def _with_limit(standing: Standing, topology: Topology) -> Standing:
    """With what is in force on the queue."""
    found = next((each for each in topology.queues if each.name == standing.queue), None)
    if found is None:
        return standing
    version = parse_version(topology.version)
    force = effective(found, Policies(topology), version)
    limit = force.delivery_limit
    said = force.decided_by("delivery-limit")
    if said is not None and said.value == -1 and version is not None and version < (4, 0):
        limit = 0  # Before 4.0 it means less than none.
    return replace(standing, kind=force.type, delivery_limit=limit, is_limit_known=True)
