"""Redrive: the app. It registers consumers, publishes, and owns what stands behind its broker's URL.

    app = Redrive("orders", broker="sqlite:///orders.db")

    @app.consumer("orders.created")
    async def charge(order: dict) -> None: ...

Nothing is opened when a module with an app is imported; `async with app` (or `open` and `close`) does it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from redrive.core.message import Headers
from redrive.core.policy.auto_redrive import AutoRedrive
from redrive.core.policy.catalogue.mail import MailRule
from redrive.core.policy.classify import Rule
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import BreakerPolicy, RateSpec
from redrive.core.policy.retry import Retry
from redrive.core.ports import Clock, Outgoing, Published
from redrive.core.topology.entry import default_wiring
from redrive.core.topology.model import EMPTY, Topology
from redrive.core.units import Duration
from redrive.errors import ConfigurationError
from redrive.runtime.adapters import open_backend
from redrive.runtime.backend import Backend
from redrive.runtime.clock import SystemClock
from redrive.runtime.consumer import DEFAULT, Consumer, Default, make_consumer
from redrive.runtime.dead_letter_queues import LetterDocument
from redrive.runtime.events import Events
from redrive.runtime.outgoing import make_outgoing
from redrive.runtime.settings import Settings, load_settings

if TYPE_CHECKING:
    from redrive.runtime.exchanges import Exchanges
    from redrive.runtime.worker import Worker

Handler = TypeVar("Handler", bound=Callable[..., Any])
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

MAX_PUBLISH_BATCH: Final = 1_000
"""Messages handed to the broker in one call; `publish_many` makes several calls of a longer list."""


class Redrive:
    """An app: a name, a broker, consumers, and what is mounted beside them.

    `name` is the `system` on every dead letter. `broker` is a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`,
    `amqp://user@host/vhost` or `memory://`; None takes the setting `broker`. `topology`: the exchanges and queues a
    broker that has them declares when the app is opened, and how its queues retry; a consumer queue it says nothing
    about gets the safe default. `version`: of your app, kept with each dead letter. `auto_redrive`: which letters
    workers send back by themselves. `collect`: dead-letter queues of others (on Redis, queues whose jobs others fail)
    that workers drain into the store; as a mapping, each with the queue its messages came from, or None where they say
    it. `settings` replaces what the environment and `redrive.toml` say; a mapping of
    settings is laid over them. Raises `ConfigurationError` for a setting nobody knows.

    >>> app = Redrive("orders", broker="memory://")
    >>> @app.consumer("orders.created")
    ... async def charge(order: dict) -> None: ...
    >>> sorted(app.consumers)
    ['orders.created']
    """

    def __init__(
        self,
        name: str,
        broker: str | None = None,
        *,
        version: str | None = None,
        auto_redrive: Sequence[AutoRedrive] = (),
        collect: Sequence[str] | Mapping[str, str | None] = (),
        topology: Topology | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not name.strip():
            raise ConfigurationError("An app needs a name; it stands on every dead letter.")
        self.name = name
        self.topology = EMPTY if topology is None else topology
        self.settings = _settings(settings, broker)
        self.version = version or self.settings.version or None
        self.auto_redrive = tuple(auto_redrive)
        self.collect = _collected(collect)
        self.clock: Clock = SystemClock() if clock is None else clock
        self.events = Events()
        self._consumers: dict[str, Consumer] = {}
        self._mounts: dict[str, AsgiApp] = {}
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._backend: Backend | None = None
        self._exchanges: Exchanges | None = None
        # How the open broker serves the fair queues: it looks here at each take.
        self.fair: MutableMapping[str, Fair] = {}
        self._opened = 0
        self._opening = asyncio.Lock()

    # ------------------------------------------------------------------------------------------- registering

    def consumer(
        self,
        queue: str,
        *,
        retry: Retry | None = None,
        concurrency: int | None = None,
        process: bool = False,
        timeout: Duration | None = None,
        lease: Duration = "30s",
        rate: RateSpec | None = None,
        fair_by: Fair | Literal["tenant"] | None = None,
        breaker: BreakerPolicy | Default | None = DEFAULT,
        idempotency: bool = True,
        idempotency_ttl: Duration = "7d",
        dead_letter_queue: str | None = None,
        letter_ttl: Duration | None = "90d",
        message_ttl: Duration | None = None,
        http_status: bool = False,
        rules: Sequence[Rule | MailRule] = (),
        attempt_field: str | None = None,
        codes: Mapping[str, str] | None = None,
        max_letters: int | None = None,
        letter_document: LetterDocument | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register the decorated function as the handler of `queue`; the function itself stays as it is.

        `retry`: how often and how far apart. `concurrency`: handlers at once in one process. `process`: run a plain
        function in a process of its own, where it can be killed. `timeout`: one attempt's limit. `lease`: how long a
        silent worker keeps a message. `rate`: starts per time, "100/min" or a number per second; of all workers
        together where the broker can count them. `fair_by`: turns between tenants. `breaker`: pause on consecutive
        transient failures (20 unless given); None is off. `idempotency_ttl`: how long a processed key is remembered.
        `letter_ttl`: when a letter may go, an open one into the archive. `message_ttl`: older ones are EXPIRED.
        `http_status`: the handler returns a status. `rules`: your own classification, asked first; a `MailRule` speaks
        of what mail servers answer. `attempt_field`: a top-level JSON field that always shows the true attempt.
        `codes`: your reason codes for ours. `max_letters`: with more dead letters the oldest go into a file of the
        folder `archive` (a setting). `letter_document`: how a dead letter lies in a dead-letter queue of the broker, in
        your system's own words.

        Raises `ConfigurationError` naming the argument; nothing is consumed then.
        """

        def register(handler: Handler) -> Handler:
            self._check_free(queue)
            self._consumers[queue] = make_consumer(
                queue,
                handler,
                self.settings,
                retry=retry,
                concurrency=concurrency,
                process=process,
                timeout=timeout,
                lease=lease,
                rate=rate,
                fair_by=fair_by,
                breaker=breaker,
                idempotency=idempotency,
                idempotency_ttl=idempotency_ttl,
                dead_letter_queue=self._dead_letter_queue(queue, dead_letter_queue),
                letter_ttl=letter_ttl,
                message_ttl=message_ttl,
                http_status=http_status,
                rules=rules,
                attempt_field=attempt_field,
                codes=codes,
                max_letters=max_letters,
                letter_document=letter_document,
            )
            return handler

        return register

    def _check_free(self, queue: str) -> None:
        if queue in self._consumers:
            raise ConfigurationError(f'The queue "{queue}" has a consumer already.')

    def _dead_letter_queue(self, queue: str, given: str | None) -> str | None:
        """Where the topology says a dead message of this queue lies, if it says so."""
        wiring = self.topology.wiring(queue)
        if wiring is None:
            return given
        if given not in {None, wiring.dead_letter_queue}:
            raise ConfigurationError(
                f'consumer "{queue}": dead_letter_queue is "{given}", the topology says "{wiring.dead_letter_queue}".'
            )
        return wiring.dead_letter_queue

    @property
    def consumers(self) -> Mapping[str, Consumer]:
        """Registered consumers by queue."""
        return self._consumers

    def mount(self, path: str, asgi_app: AsgiApp) -> None:
        """Serve `asgi_app` under `path` wherever this app is served (`redrive up`, `redrive serve`)."""
        clean = "/" + path.strip("/")
        if clean in self._mounts:
            raise ConfigurationError(f'Something is mounted on "{clean}" already.')
        self._mounts[clean] = asgi_app

    @property
    def mounts(self) -> Mapping[str, AsgiApp]:
        """What is mounted, by path."""
        return self._mounts

    # ------------------------------------------------------------------------------------------- life

    @property
    def backend(self) -> Backend:
        """The opened adapters. Raises `ConfigurationError` before `open`."""
        if self._backend is None:
            raise ConfigurationError(f'The app "{self.name}" is not open.', hint='Use "async with app:".')
        return self._backend

    @property
    def is_open(self) -> bool:
        """Whether the backend is there."""
        return self._backend is not None

    def wired_topology(self) -> Topology:
        """The app's topology, with a wiring for every consumer queue."""
        wired = {wiring.queue for wiring in self.topology.wirings}
        others = [each for each in self._consumers.values() if each.queue not in wired]
        wirings = tuple(default_wiring(each.queue, each.dead_letter_queue) for each in others)
        return dataclasses.replace(self.topology, wirings=(*self.topology.wirings, *wirings))

    async def open(self) -> None:
        """Connect to the broker and its stores. Opened twice, it closes with the second `close`.

        Raises `BrokerUnavailableError`, `StorageCorruptError`, `SchemaTooNewError`, or `MissingExtraError`.
        """
        async with self._opening:
            if self._backend is None:
                made = {queue: each.letter_document for queue, each in self._consumers.items()}
                backend = open_backend(
                    self.settings.broker,
                    clock=self.clock,
                    settings=self.settings,
                    topology=self.wired_topology(),
                    retries={each.queue: each.retry for each in self._consumers.values()},
                    fair=self._set_fair(),
                    rates={each.queue: each.rate for each in self._consumers.values() if each.rate is not None},
                    documents={queue: document for queue, document in made.items() if document is not None},
                )
                await backend.open()
                self._backend = backend
            self._opened += 1

    def _set_fair(self) -> MutableMapping[str, Fair]:
        self.fair.clear()
        self.fair.update({each.queue: each.fair for each in self._consumers.values() if each.fair is not None})
        return self.fair

    async def close(self) -> None:
        """Give the connection back."""
        self._opened = max(0, self._opened - 1)
        if self._opened == 0 and self._backend is not None:
            backend, self._backend = self._backend, None
            for close in self._closers:
                await close()
            await backend.close()

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` awaited whenever the app is closed: for what a handler opened and keeps. It must not raise."""
        self._closers.append(close)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------- publishing

    async def publish(
        self,
        queue: str,
        payload: Any,
        *,
        delay: Duration | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        priority: int | None = None,
        headers: Headers | None = None,
        type: str | None = None,  # noqa: A002 - the message property's own name
        ttl: Duration | None = None,
        message_id: str | None = None,
        content_type: str | None = None,
        trace_id: str | None = None,
        once: bool = False,
        digest: str | None = None,
        exchange: str = "",
        **properties: Any,
    ) -> Published:
        """Send one message; returns when the broker has it durably.

        `exchange`: send it there, with `queue` as the routing key; on a broker without exchanges it goes to the queues
        that the app's topology binds to it. `payload`: bytes go as they are, text as UTF-8, anything else as JSON.
        `delay`: not handed out before.
        `idempotency_key`: handled once per consumer queue (None: `message_id`; neither: no idempotency).
        `priority`: 1 is the most urgent. `ttl`: dead-lettered as EXPIRED when older. `once`: send only if the key is
        not known to the queue; the answer then says `duplicate`. `digest`: kept with the key of a `once` message;
        another one under the same key is answered with `conflict`. `properties`: correlation_id, reply_to, … as in
        AMQP 0-9-1.

        Raises `InvalidMessageError` (nothing was sent) and `BrokerUnavailableError` (repeat it with the same
        `message_id`; a second copy is harmless).
        """
        outgoing = make_outgoing(
            queue,
            payload,
            self.clock.now(),
            max_body_bytes=self.settings.max_body_bytes,
            delay=delay,
            tenant=tenant,
            idempotency_key=idempotency_key,
            priority=priority,
            headers=headers,
            type=type,
            ttl=ttl,
            message_id=message_id,
            content_type=content_type,
            trace_id=trace_id,
            once=once,
            digest=digest,
            exchange=exchange,
            keyed=self.gives_keys,
            **properties,
        )
        return (await self.publish_outgoing([outgoing]))[0]

    @property
    def gives_keys(self) -> bool:
        """Whether a message published without key and id gets its made-up id as key: where the broker does not count
        starts, only a key tells after a crash which message it was.
        """
        return self._backend is not None and not self._backend.features.counts_starts

    async def publish_many(self, queue: str, messages: Sequence[Any], **common: Any) -> list[Published]:
        """Send many at once, which is much faster than one by one; one answer per message, same order.

        Each message is a payload, or a pair (payload, mapping of `publish` arguments for this one). `common` holds
        for all. On an error, whole batches of 1 000 before it are sent; repeat with the same `message_id`s.
        """
        now, limit, keyed = self.clock.now(), self.settings.max_body_bytes, self.gives_keys
        batch = [
            make_outgoing(queue, payload, now, max_body_bytes=limit, keyed=keyed, **{**common, **own})
            for payload, own in map(_payload_and_arguments, messages)
        ]
        return await self.publish_outgoing(batch)

    async def publish_outgoing(self, batch: Sequence[Outgoing]) -> list[Published]:
        """Send messages that are made already."""
        if any(outgoing.exchange for outgoing in batch) and not self.backend.broker.features.exchanges:
            return await self._publish_routed(batch)
        answers: list[Published] = []
        for start in range(0, len(batch), MAX_PUBLISH_BATCH):
            part = batch[start : start + MAX_PUBLISH_BATCH]
            answers += await self.backend.ledger.publish(part)
            for queue, count in Counter([outgoing.queue for outgoing in part]).items():
                self.events.emit("message.published", queue=queue, count=count)
        return answers

    def routed(self, outgoing: Outgoing) -> list[Outgoing]:
        """What to hand to the broker for this message: itself, or where the broker has no exchanges, one message for
        every queue that the app's topology binds to the exchange.

        Raises `QueueNotFoundError` where that is no queue at all, as a broker with exchanges would return it.
        """
        if not outgoing.exchange or self.backend.broker.features.exchanges:
            return [outgoing]
        if self._exchanges is None:
            from redrive.runtime.exchanges import Exchanges  # noqa: PLC0415 - most apps need none

            self._exchanges = Exchanges(self.topology)
        return self._exchanges.routed(outgoing)

    async def _publish_routed(self, batch: Sequence[Outgoing]) -> list[Published]:
        """A message is a duplicate, or in conflict, where it is so in every queue it goes to."""
        routed = [self.routed(outgoing) for outgoing in batch]
        answers = iter(await self.publish_outgoing([each for copies in routed for each in copies]))
        found = [[next(answers) for _ in copies] for copies in routed]
        return [
            Published(duplicate=all(each.duplicate for each in told), conflict=all(each.conflict for each in told))
            for told in found
        ]

    # ------------------------------------------------------------------------------------------- consuming

    def worker(
        self, queues: Sequence[str] | None = None, *, name: str | None = None, owns_process: bool = False
    ) -> Worker:
        """A worker for these queues (None: all). `owns_process`: the process ends when the worker does, so handlers in
        threads that outlive the grace period can be handed back.

        Raises `ConfigurationError` for a queue without a consumer.
        """
        from redrive.runtime.worker import Worker  # noqa: PLC0415 - publishing needs no worker

        return Worker(self, queues, name=name, owns_process=owns_process)


def _settings(settings: Settings | Mapping[str, Any] | None, broker: str | None) -> Settings:
    if not isinstance(settings, Settings):
        return load_settings({**(settings or {}), "broker": broker})
    return settings if broker is None else dataclasses.replace(settings, broker=broker)


def _collected(given: Sequence[str] | Mapping[str, str | None]) -> dict[str, str | None]:
    if isinstance(given, str):
        raise ConfigurationError(f'collect is "{given}": it must be a list of queues.', hint=f'Write ["{given}"].')
    queues: dict[str, str | None] = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given)
    for queue in queues:
        if not queue.strip():
            raise ConfigurationError("collect holds a queue without a name.")
    return queues


def _payload_and_arguments(item: Any) -> tuple[Any, Mapping[str, Any]]:
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Mapping):  # noqa: PLR2004 - a pair
        return item
    return item, {}
