"""A topology as the walk sees it: what is in force on each queue, who consumes, with which keys messages come, and
where each queue sends what dies in it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from redrive.core.topology.model import Queue, QueueType, Topology
from redrive.core.topology.verify.client import Client, Publish
from redrive.core.topology.verify.effective import Effective, Policies, Version, effective
from redrive.core.topology.verify.patterns import EVERY, is_literal, literal
from redrive.core.topology.verify.routing import DEFAULT, Keys, QueueId, Route, Router
from redrive.core.topology.wiring import LadderRetry, Wiring

MANY_KEYS: Final = 32
"""Beyond so many different keys a queue is taken to get every key."""


class Role(StrEnum):
    """CONSUMED: somebody reads it. WAITING: nobody does; messages stay until they expire and go on. RESTING: nobody
    does; messages stay until a person comes.
    """

    CONSUMED = "consumed"
    WAITING = "waiting"
    RESTING = "resting"


class Cause(StrEnum):
    """Why a message leaves a queue for its dead-letter exchange."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    LIMIT = "delivery_limit"


AUTOMATIC: Final = frozenset({Cause.EXPIRED, Cause.MAXLEN, Cause.LIMIT})
"""Causes that need no consumer's decision; a cycle of these alone the broker cuts by dropping the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettering:
    """What becomes of what dies in a queue: to `exchange`, once for each of the `keys` it may have."""

    exchange: str
    keys: tuple[Keys, ...]
    routes: tuple[Route, ...]
    is_confirmed: bool

    @property
    def targets(self) -> frozenset[QueueId]:
        """Every queue that may get one."""
        return frozenset().union(*(route.queues for route in self.routes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything the rules look at. `keys`: with which keys messages come to a queue. `guessed`: roles are taken from
    names and wiring, because nobody said who consumes.
    """

    topology: Topology
    version: Version | None
    client: Client
    router: Router
    policies: Policies
    queues: Mapping[QueueId, Queue]
    settings: Mapping[QueueId, Effective]
    roles: Mapping[QueueId, Role]
    keys: Mapping[QueueId, frozenset[Keys]]
    dead_lettering: Mapping[QueueId, DeadLettering]
    wirings: Mapping[QueueId, Wiring]
    guessed: bool

    def causes(self, queue: QueueId) -> tuple[Cause, ...]:
        """Why messages may die in this queue."""
        return causes(self.settings[queue], self.roles[queue], self.client)

    def onward(self, queue: QueueId, keys: Keys) -> tuple[Keys, Route] | None:
        """Where a message that came with these keys goes when it dies here, and its keys then."""
        setting = self.settings[queue]
        if setting.dead_letter_exchange is None:
            return None
        told = keys if setting.dead_letter_key is None else (literal(setting.dead_letter_key),)
        return told, self.router.route(queue.vhost, setting.dead_letter_exchange, told)

    def arrival(self, target: QueueId, exchange: str, keys: Keys) -> Keys:
        """The keys of a message that came to `target` through the exchange: by its name, where that is the default
        one.
        """
        return (literal(target.name),) if exchange == DEFAULT else keys

    def with_role(self, role: Role) -> Iterator[QueueId]:
        """Queues of this role, in the order of the topology."""
        return (queue for queue, known in self.roles.items() if known is role)


def causes(setting: Effective, role: Role, client: Client) -> tuple[Cause, ...]:
    """Why messages may die in a queue with these settings."""
    if setting.type not in (QueueType.CLASSIC, QueueType.QUORUM):
        return ()
    found = []
    if role is Role.CONSUMED:
        found.append(Cause.REJECTED)
    if setting.ttl_ms is not None or role is Role.WAITING or (client.per_message_ttl and role is Role.CONSUMED):
        found.append(Cause.EXPIRED)
    if setting.is_bounded and setting.overflow != "reject-publish":
        found.append(Cause.MAXLEN)
    if role is Role.CONSUMED and setting.type is QueueType.QUORUM and setting.delivery_limit is not None:
        found.append(Cause.LIMIT)
    return tuple(found)


def is_confirmed(setting: Effective, version: Version | None, flags: Collection[str] | None) -> bool:
    """Dead-lettering of this queue is at-least-once in fact."""
    can = version is None or version >= (4, 0) or (version >= (3, 10) and (flags is None or "stream_queue" in flags))
    return (
        can
        and setting.type is QueueType.QUORUM
        and setting.strategy == "at-least-once"
        and setting.overflow == "reject-publish"
        and setting.dead_letter_exchange is not None
    )


def survey(
    topology: Topology,
    *,
    version: Version | None,
    client: Client,
    consumers: Collection[str] | None,
    publishes: Collection[Publish],
) -> Situation:
    """Work out everything the rules look at."""
    policies = Policies(topology)
    router = Router(topology, policies)
    queues = {QueueId(queue.vhost, queue.name): queue for queue in topology.queues}
    settings = {name: effective(queue, policies, version) for name, queue in queues.items()}
    wirings = {QueueId(_home(queues, each.queue), each.queue): each for each in topology.wirings}
    roles = _roles(queues, settings, router, wirings=wirings, consumers=consumers)
    keys = _Keys(queues, settings, router, roles=roles, client=client).of(topology, publishes, wirings)
    flags = topology.feature_flags
    dead_lettering = {}
    for name, setting in settings.items():
        exchange = setting.dead_letter_exchange
        if exchange is None or setting.type in (None, QueueType.STREAM):
            continue
        fixed = setting.dead_letter_key
        told = tuple(sorted(keys[name], key=str)) if fixed is None else ((literal(fixed),),)
        dead_lettering[name] = DeadLettering(
            exchange=exchange,
            keys=told,
            routes=tuple(router.route(name.vhost, exchange, each) for each in told),
            is_confirmed=is_confirmed(setting, version, flags),
        )
    return Situation(
        topology=topology,
        version=version,
        client=client,
        router=router,
        policies=policies,
        queues=queues,
        settings=settings,
        roles=roles,
        keys=keys,
        dead_lettering=dead_lettering,
        wirings=wirings,
        guessed=consumers is None,
    )


def _home(queues: Iterable[QueueId], name: str) -> str:
    return next((queue.vhost for queue in queues if queue.name == name), "/")


# ---------------------------------------------------------------------------------------------------- roles

_WAITING: Final = frozenset(
    {"retry", "retries", "wait", "waiting", "delay", "delayed", "backoff", "hold", "later", "ttl", "scheduled"}
)
_RESTING: Final = frozenset(
    {
        "dlq",
        "dlqs",
        "dlx",
        "dead",
        "deadletter",
        "deadletters",
        "parked",
        "parking",
        "park",
        "poison",
        "error",
        "errors",
    }
    | {"failed", "failures", "graveyard", "unrouted", "unroutable", "quarantine", "invalid", "rejected", "skipped"}
)


RETRYING: Final = frozenset({"retry", "retries", "backoff", "redelivery", "redeliver", "attempt"})
"""Words in the name of a queue from which failed messages come back."""


def words(name: str) -> set[str]:
    """The words of a name, in small letters: at hyphens, dots, digits and capitals."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return {word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word}


def _roles(
    queues: Mapping[QueueId, Queue],
    settings: Mapping[QueueId, Effective],
    router: Router,
    *,
    wirings: Mapping[QueueId, Wiring],
    consumers: Collection[str] | None,
) -> dict[QueueId, Role]:
    if consumers is not None:
        told = set(consumers) | {name.name for name in wirings}
        return {
            name: Role.CONSUMED if name.name in told else _unread(setting, words(name.name))
            for name, setting in settings.items()
        }
    dead = {wiring.dead_letter_queue for wiring in wirings.values()}
    roles: dict[QueueId, Role | None] = {}
    for name, setting in settings.items():
        roles[name] = Role.CONSUMED if name in wirings else Role.RESTING if name.name in dead else _named(name, setting)
    sure = {name for name, role in roles.items() if role is Role.CONSUMED}
    fed_by: dict[QueueId, set[QueueId]] = {name: set() for name in queues}
    for name, setting in settings.items():
        for target in _may_feed(name, setting, router):
            fed_by.setdefault(target, set()).add(name)
    return {
        name: role or _placed(name, settings[name], (roles, fed_by[name], sure), router=router)
        for name, role in roles.items()
    }


def _unread(setting: Effective, said: set[str]) -> Role:
    """Of a queue nobody consumes: whether messages leave it again."""
    goes_on = setting.dead_letter_exchange is not None
    waits = setting.ttl_ms is not None or (said & _WAITING and _is_meant_to_go_on(setting))
    return Role.WAITING if goes_on and waits else Role.RESTING


def _is_meant_to_go_on(setting: Effective) -> bool:
    """Its own arguments say where to; a policy may say so of every queue there is."""
    by = setting.decided_by("dead-letter-exchange")
    return by is not None and by.kind == "argument"


def _named(name: QueueId, setting: Effective) -> Role | None:
    """What its name says, where its settings do not contradict; None: what it is depends on its place."""
    said, goes_on = words(name.name), setting.dead_letter_exchange is not None
    if goes_on and said & _WAITING and (setting.ttl_ms is not None or _is_meant_to_go_on(setting)):
        return Role.WAITING
    if said & _RESTING and not (setting.ttl_ms is None and _is_meant_to_go_on(setting)):
        return Role.WAITING if goes_on and setting.ttl_ms is not None else Role.RESTING
    return Role.CONSUMED if goes_on and setting.ttl_ms is None else None


def _may_feed(name: QueueId, setting: Effective, router: Router) -> frozenset[QueueId]:
    exchange = setting.dead_letter_exchange
    if exchange is None:
        return frozenset()
    keys: Keys = (EVERY,) if setting.dead_letter_key is None else (literal(setting.dead_letter_key),)
    if exchange == DEFAULT and setting.dead_letter_key is None:
        return frozenset()
    return router.route(name.vhost, exchange, keys).queues


def _placed(
    name: QueueId,
    setting: Effective,
    known: tuple[Mapping[QueueId, Role | None], set[QueueId], set[QueueId]],
    *,
    router: Router,
) -> Role:
    """By its place among the others. With a TTL and a way on it waits, unless it feeds a queue that is called so or
    gets messages from elsewhere; without a way on it rests, where only dead letters come to it.
    """
    roles, feeders, sure = known
    others = feeders - {name}
    if setting.dead_letter_exchange is None:
        return Role.RESTING if others else Role.CONSUMED
    if others & sure:
        return Role.WAITING
    feeds = {roles.get(target) for target in _may_feed(name, setting, router) if target != name}
    return Role.CONSUMED if feeds & {Role.WAITING, Role.RESTING} else Role.WAITING


# ---------------------------------------------------------------------------------------------------- keys


class _Keys:
    """With which keys messages come to each queue: from bindings, or what is published; then along dead-lettering."""

    def __init__(
        self,
        queues: Mapping[QueueId, Queue],
        settings: Mapping[QueueId, Effective],
        router: Router,
        *,
        roles: Mapping[QueueId, Role],
        client: Client,
    ) -> None:
        self._settings, self._router, self._roles, self._client = settings, router, roles, client
        self._found: dict[QueueId, set[Keys]] = {name: set() for name in queues}

    def of(
        self, topology: Topology, publishes: Collection[Publish], wirings: Mapping[QueueId, Wiring]
    ) -> dict[QueueId, frozenset[Keys]]:
        """The keys of every queue; one that nothing leads to gets its own name, through the default exchange."""
        told = {(publish.vhost, publish.exchange) for publish in publishes}
        for publish in publishes:
            keys = tuple(literal(key) for key in (publish.routing_key, *publish.cc))
            for target in self._router.route(publish.vhost, publish.exchange, keys).queues:
                self._add(target, keys)
        for vhost, exchange in {(each.vhost, each.source) for each in topology.bindings}:
            if (vhost, exchange) not in told:
                self._bound_to(vhost, exchange)
        for name, wiring in wirings.items():
            if isinstance(wiring.retry, LadderRetry):
                self._add(name, (literal(name.name),))
        self._spread()
        return {name: frozenset(keys) or frozenset({(literal(name.name),)}) for name, keys in self._found.items()}

    def _bound_to(self, vhost: str, exchange: str) -> None:
        for bound in self._router.bound(vhost, exchange):
            if not bound.to_exchange:
                self._add(QueueId(vhost, bound.destination), (bound.pattern or EVERY,))

    def _add(self, name: QueueId, keys: Keys) -> bool:
        known = self._found.get(name)
        if known is None or keys in known or (EVERY,) in known:
            return False
        known.add(keys)
        if len(known) > MANY_KEYS:
            known.clear()
            known.add((EVERY,))
        return True

    def _spread(self) -> None:
        """Along the dead-lettering of every queue, until nothing new arrives anywhere."""
        waiting = deque(self._found)
        queued = set(waiting)
        while waiting:
            name = waiting.popleft()
            queued.discard(name)
            for target, keys in self._deaths(name):
                if self._add(target, keys) and target not in queued:
                    queued.add(target)
                    waiting.append(target)

    def _deaths(self, name: QueueId) -> Iterator[tuple[QueueId, Keys]]:
        setting = self._settings[name]
        exchange = setting.dead_letter_exchange
        if exchange is None or not causes(setting, self._roles[name], self._client):
            return
        fixed = setting.dead_letter_key
        own: set[Keys] = {(literal(name.name),)}
        for keys in [(literal(fixed),)] if fixed is not None else list(self._found[name] or own):
            if exchange == DEFAULT and not all(is_literal(key) for key in keys):
                continue
            for target in self._router.route(name.vhost, exchange, keys).queues:
                yield target, ((literal(target.name),) if exchange == DEFAULT else keys)
