"""Worker: consumes queues of one app until it is stopped, and stops without losing or charging anything.

    starting ─open→ running ─stop→ draining ─all ended, or grace over→ stopped
        └─stop→ stopped        └─stop at once→ ──────────────────────────┘

Draining takes nothing more and lets what runs finish. When the grace period is over, handlers on the loop are
cancelled and handlers in processes killed, and both are handed back: that costs no attempt. A handler in a thread can
only be told. Where the process ends with the worker (`owns_process`) it is handed back at the very last moment;
elsewhere its lease runs out, and its start counts as one that never ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.ports import ClaimEnd, End
from redrive.core.topology.model import consumer_timeout_ms
from redrive.core.units import Millis
from redrive.errors import ConfigurationError, UnsupportedError
from redrive.runtime.collecting import Collecting
from redrive.runtime.controls import Controls
from redrive.runtime.gate import Gate
from redrive.runtime.hosting import host_process
from redrive.runtime.leases import LeaseGroup, LeaseKeeper
from redrive.runtime.overflow import Overflow
from redrive.runtime.pipeline import Pipeline
from redrive.runtime.settings import nearest
from redrive.runtime.upkeep import Upkeep

if TYPE_CHECKING:
    from redrive.runtime.app import Redrive

INTERRUPT_WAIT_MS: Final[Millis] = 1_000
"""How long an interrupted handler may take for its own clean-up before it is left behind."""

HAND_BACK_WAIT_MS: Final[Millis] = 1_000
"""How long the last hand-back may take; the store may be away."""


class Worker:
    """Consumes these queues of `app`; None: all it has consumers for. Made by `Redrive.worker`.

    `run` inside your own loop, or `main` where the process is the worker's own.
    """

    def __init__(
        self, app: Redrive, queues: Sequence[str] | None = None, *, name: str | None = None, owns_process: bool = False
    ) -> None:
        self.app = app
        self.name = _own_name() if name is None else name
        self.queues = tuple(app.consumers) if queues is None else tuple(dict.fromkeys(queues))
        for queue in self.queues:
            if queue not in app.consumers:
                text = f'The app "{app.name}" has no consumer for the queue "{queue}". Nothing was consumed.'
                raise ConfigurationError(text, hint=nearest(queue, app.consumers))
        if not self.queues:
            raise ConfigurationError(f'The app "{app.name}" has no consumer; there is nothing to work on.')
        self._owns_process = owns_process
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._pipelines: tuple[Pipeline, ...] = ()
        self._is_started = False
        self._gate: Gate | None = None

    @property
    def is_ready(self) -> bool:
        """Whether every queue is being consumed: false while starting, draining, or while the broker is away."""
        return self._is_started and not self._stopping.is_set() and all(p.is_ready for p in self._pipelines)

    def stop(self, *, at_once: bool = False) -> None:
        """Drain, or (`at_once`) hand everything back now. May be called at any time, from the worker's own loop."""
        self._stopping.set()
        if at_once:
            self._at_once.set()

    async def run(self) -> None:
        """Consume until `stop`. Opens the app and closes it again.

        Raises `BrokerUnavailableError`, `StorageCorruptError` or `SchemaTooNewError` where it cannot be opened. A
        cancelled `run` stops at once.
        """
        if not await self._opened():
            return
        try:
            await self._consume()
        finally:
            await self.app.close()

    def main(self) -> int:
        """Be this process's purpose: run until SIGTERM or SIGINT, drain; a second signal stops at once.

        Returns the exit code: 0 after a drain, 128 + the signal's number after a second one.
        """
        self._owns_process = True
        return host_process(self.run, stop=self.stop, last_resort=self.last_resort)

    async def _opened(self) -> bool:
        """False: stopped before the broker answered."""
        opening = asyncio.ensure_future(self.app.open())
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({opening, stopped}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            opening.cancel()
            raise
        finally:
            stopped.cancel()
        if opening.done():
            await opening
            return True
        opening.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await opening
        return False

    async def _consume(self) -> None:
        app, clock = self.app, self.app.clock
        self._check_fairness()
        self._check_collect()
        self._gate = Gate(clock)
        pipelines = self._pipelines = tuple(
            Pipeline(app, app.consumers[queue], worker=self.name, gate=self._gate) for queue in self.queues
        )
        keeper = LeaseKeeper(clock)
        for each in pipelines:
            keeper.add(LeaseGroup(each.ledger, each.in_hand, lease_ms=each.consumer.lease_ms, stop=each.request_cancel))
        upkeep = Upkeep(
            app.backend,
            clock,
            app.events,
            owner=self.name,
            interval_ms=app.settings.upkeep_interval_ms,
            controls=self._controls(),
            auto_redrive=app.auto_redrive,
            consumers=app.consumers,
        )
        overflow = Overflow(app, [each.consumer for each in pipelines], owner=self.name)
        duties = (upkeep.run(), overflow.run(), self._collecting().run(), self._expire(keeper))
        beside = [asyncio.create_task(duty) for duty in duties]
        keeper.start()
        self._warn()
        app.events.emit("worker.started", worker=self.name, queues=list(self.queues), pid=os.getpid())
        try:
            for each in pipelines:
                each.start()
            self._is_started = True
            await self._stopping.wait()
            await self._drain()
        except asyncio.CancelledError:
            self.stop(at_once=True)
            await self._drain()
            raise
        finally:
            await self._end(keeper, beside)

    def _collecting(self) -> Collecting:
        app = self.app
        return Collecting(
            app.backend,
            app.clock,
            app.events,
            queues=app.collect,
            system=app.name,
            owner=self.name,
            settings=app.settings,
        )

    def _controls(self) -> Controls | None:
        """What people may change of this worker's queues, which wait until it is known; None where nothing can be."""
        app, store = self.app, self.app.backend.controls
        if store is None:
            return None
        own = {queue: fair for queue in self.queues if (fair := app.consumers[queue].fair) is not None}
        for each in self._pipelines:
            each.hold()
        consumers = {each.consumer.queue: each for each in self._pipelines}
        return Controls(store, own=own, live=app.fair, events=app.events, consumers=consumers)

    def _check_fairness(self) -> None:
        features = self.app.backend.features
        for consumer in (self.app.consumers[queue] for queue in self.queues):
            if consumer.fair is not None and not features.fair:
                raise UnsupportedError(
                    f'The broker of consumer "{consumer.queue}" takes no turns between tenants. Nothing was consumed.',
                    hint="Leave fair_by out, or use a broker that can: sqlite:///, redis:// or amqp://.",
                )
            if consumer.fair is not None and consumer.fair.tenant_field is not None and not features.reads_tenants:
                raise UnsupportedError(
                    f'Consumer "{consumer.queue}" has fair.tenant_field, but all messages of its broker come from '
                    "redrive, which says their tenant. Nothing was consumed.",
                    hint="Leave tenant_field out, and publish with tenant=.",
                )

    def _check_collect(self) -> None:
        """Live messages are no dead letters."""
        app = self.app
        keeps_failed = app.backend.failed is not None
        for queue, origin in app.collect.items():
            if not keeps_failed and queue in app.consumers:
                raise ConfigurationError(
                    f'collect names "{queue}", which has a consumer: its messages live. Nothing was consumed.',
                    hint="Name the queue in which they lie once they are dead.",
                )
            if keeps_failed and origin is not None:
                raise ConfigurationError(
                    f'collect says that what failed in "{queue}" came from "{origin}"; a failed job comes from its '
                    "own queue. Nothing was consumed.",
                    hint=f'Write collect=["{queue}"].',
                )

    def _warn(self) -> None:
        """Say what may surprise somebody later."""
        app = self.app
        if app.backend.local_store is not None:
            app.events.emit("store.is_local", store=app.backend.local_store, broker=app.backend.url)
        if not app.backend.features.exchanges:
            return
        for consumer in (app.consumers[queue] for queue in self.queues):
            limit_ms = consumer_timeout_ms(app.topology, consumer.queue)
            if consumer.timeout_ms is not None and consumer.timeout_ms >= limit_ms:
                app.events.emit(
                    "consumer.outlasts_broker",
                    queue=consumer.queue,
                    timeout_ms=consumer.timeout_ms,
                    broker_timeout_ms=limit_ms,
                )

    async def _expire(self, keeper: LeaseKeeper) -> None:
        """The loop's own look at the leases, for the time when a renewal hangs."""
        interval = min(each.consumer.lease_ms for each in self._pipelines) / 3
        while True:
            await self.app.clock.sleep(interval)
            keeper.expire()

    # ------------------------------------------------------------------------------------------- stopping

    async def _drain(self) -> None:
        grace_ms = self.app.settings.grace_ms
        in_hand = sum(len(each.in_hand) for each in self._pipelines)
        self.app.events.emit("worker.draining", worker=self.name, in_hand=in_hand, grace_ms=grace_ms)
        for each in self._pipelines:
            each.stop()
        assert self._gate is not None
        self._gate.let_go()
        drained = asyncio.ensure_future(asyncio.gather(*(each.drained() for each in self._pipelines)))
        try:
            await self._wait(drained, self._at_once.wait(), self.app.clock.sleep(grace_ms))
            if not drained.done():
                for each in self._pipelines:
                    each.interrupt()
                await self._wait(drained, self.app.clock.sleep(INTERRUPT_WAIT_MS))
            if not drained.done() and self._owns_process:
                for each in self._pipelines:
                    each.hand_back()
                await self._wait(drained, self.app.clock.sleep(HAND_BACK_WAIT_MS))
        finally:
            drained.cancel()

    @staticmethod
    async def _wait(drained: asyncio.Future[Any], *others: Coroutine[Any, Any, Any]) -> None:
        """Until drained, or one of the others is over."""
        tasks = {asyncio.ensure_future(other) for other in others}
        try:
            await asyncio.wait({drained, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _end(self, keeper: LeaseKeeper, beside: list[asyncio.Task[None]]) -> None:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        for each in self._pipelines:
            each.close()
        keeper.close()
        handed_back = sum(each.handed_back for each in self._pipelines)
        self.app.events.emit("worker.stopped", worker=self.name, handed_back=handed_back)

    def last_resort(self) -> None:
        """The loop does not come back: hand back from another thread, as far as the broker lets us. One whose
        deliveries belong to a connection takes them back by itself when this process ends; only the claims are then
        released here, so that nobody waits for them.
        """
        ends = [end for each in self._pipelines for end in each.last_ends()]
        if not ends:
            return
        backend = self.app.backend
        hand_back = backend.ledger.commit(ends) if backend.features.leases else backend.claims.finish(_releases(ends))
        with contextlib.suppress(Exception):
            asyncio.run(asyncio.wait_for(hand_back, HAND_BACK_WAIT_MS / 1_000))


def _releases(ends: Sequence[End]) -> list[ClaimEnd]:
    """How the claims of these deliveries end that are handed back."""
    verdicts = [end.taken.verdict for end in ends]
    refs = [verdict.ref for verdict in verdicts if isinstance(verdict, Acquired)]
    refs += [end.taken.counted for end in ends if end.taken.counted is not None]
    return [ClaimEnd(ref=ref, state=ClaimState.RECEIVED) for ref in refs]


def _own_name() -> str:
    """Host, process and a random part: two workers never share a name."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
