"""Collecting as a duty of workers: queues that others dead-letter into are drained into the store, for as long as any
worker of the app runs.

    nobody ─take─→ one worker collects, renews ─stopped→ given back ─→ another
                        └─killed, cut off→ its turn ends after `LEASE_MS` ─→ another

One worker at a time has the turn of a queue: a claim in the claim store, with a lease. Two at once would take messages
that are alike in everything for one (see `collector.py`). The turn is no more than that: whatever a worker does that
lost its turn and does not know it yet, each message is stored before it is acknowledged or removed.

Away, the broker, the store or the queue are asked again with growing pauses, the turn is taken anew then. So is it with
a message nobody can store: it stays where it is, and that is told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from redrive.core.idempotency import Acquired, ClaimRef, ClaimState
from redrive.core.ports import ClaimEnd, ClaimStore, Clock
from redrive.core.units import Millis
from redrive.errors import BrokerUnavailableError, LeaseLostError, RedriveError, TransitionError
from redrive.runtime.backend import Backend
from redrive.runtime.collector import Collected, Collector, OnCollected
from redrive.runtime.events import Events
from redrive.runtime.failed_collector import OWN, FailedCollector
from redrive.runtime.outage import Outage
from redrive.runtime.settings import Settings

LEASE_MS: Final[Millis] = 10_000
RENEWALS_PER_LEASE: Final = 4
LOOK_EVERY_MS: Final[Millis] = 2_000
"""Between two rounds through a queue, and between two looks whether its turn is free."""
LOOK_AT_LEAST_EVERY_MS: Final[Millis] = 30_000
SHARE: Final = 20
"""A round that finds nothing is followed by a pause that is so many times as long."""
ASK_EVERY_MS: Final[Millis] = 250
PAUSE_MS: Final[Millis] = 1_000
KEY: Final = "redrive:collector"
"""Of the claim. No message has it: what redrive gives out begins so."""


T = TypeVar("T")
AnyCollector: TypeAlias = Collector | FailedCollector


class Turn:
    """The right to collect from one queue, for `owner`."""

    def __init__(self, claims: ClaimStore, clock: Clock, *, queue: str, owner: str) -> None:
        self._claims = claims
        self._clock = clock
        self._queue = queue
        self._owner = owner
        self._ref: ClaimRef | None = None
        self._until_ms = 0.0
        self.is_after_kill = False
        """Whether who had it before did not give it back."""
        self._is_new = True

    async def wait(self) -> None:
        """Take it, if need be once the lease of a collector that was killed has ended. Raises `TransitionError` where
        somebody alive has it.
        """
        until = self._clock.monotonic_ms() + LEASE_MS + ASK_EVERY_MS
        while not await self.take():
            if self._clock.monotonic_ms() >= until:
                raise TransitionError(
                    f'Another collector drains "{self._queue}" already. Nothing was taken by this one.',
                    hint="One does at a time. A worker of an app with collect= does for as long as it runs.",
                )
            await self._clock.sleep(ASK_EVERY_MS)

    async def take(self) -> bool:
        """Whether it is ours from now on, or still. Killed in here or later: it ends by itself."""
        asked_ms = self._clock.monotonic_ms()
        if self._ref is not None:
            # Not given back, for something that was stored is not acknowledged yet.
            (is_ours,) = await asyncio.to_thread(self._claims.renew, [self._ref], lease_ms=LEASE_MS)
            self._until_ms = asked_ms + LEASE_MS
            if is_ours:
                self._is_new = False
                return True
            self._ref = None
        (verdict,) = await self._claims.claim([(self._queue, KEY)], lease_ms=LEASE_MS, owner=self._owner)
        if not isinstance(verdict, Acquired):
            return False
        self._ref, self._until_ms = verdict.ref, asked_ms + LEASE_MS
        self.is_after_kill = verdict.lost is not None
        self._is_new = True
        return True

    def begin(self, collector: AnyCollector) -> None:
        """Tell this collector what the turn means for it: what it counted before another may have had it is over."""
        if self._is_new:
            collector.forget()
        collector.is_after_loss |= self.is_after_kill

    async def renew(self) -> None:
        """Keep it. Raises `LeaseLostError` where it has passed on, or could not be renewed before its end."""
        assert self._ref is not None, "a turn is renewed by who has it"
        asked_ms = self._clock.monotonic_ms()
        try:
            (is_ours,) = await asyncio.to_thread(self._claims.renew, [self._ref], lease_ms=LEASE_MS)
        except RedriveError:
            is_ours = asked_ms < self._until_ms - LEASE_MS / RENEWALS_PER_LEASE
        else:
            self._until_ms = asked_ms + LEASE_MS
        if not is_ours:
            raise LeaseLostError(f'The turn to collect from "{self._queue}" is over. Nothing was lost.')

    async def give_back(self) -> None:
        """Let another have it at once; where that fails, after the lease."""
        if self._ref is None:
            return
        end = ClaimEnd(ref=self._ref, state=ClaimState.RECEIVED, expires_at=self._clock.now())
        self._ref = None
        with contextlib.suppress(RedriveError):
            await self._claims.finish([end])

    async def during(self, work: Coroutine[Any, Any, T], collector: AnyCollector) -> T:
        """Carry out `work` of this collector for as long as the turn is ours. It is given back at the end; where the
        collector may have stored what is not acknowledged it ends by itself, as after a kill. Raises `LeaseLostError`,
        and what `work` raises.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                pause = asyncio.ensure_future(self._clock.sleep(LEASE_MS / RENEWALS_PER_LEASE))
                await asyncio.wait({task, pause}, return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                if not task.done():
                    await self.renew()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.shield(collector.let_go())
            if collector.is_clean:
                await asyncio.shield(self.give_back())


async def collect_in_turn(
    collector: AnyCollector,
    turn: Turn,
    clock: Clock,
    *,
    queue: str,
    once: bool,
    limit: int | None = None,
    on_collected: OnCollected | None = None,
) -> Collected:
    """What `collector.run` does, as the only one at this queue. Not `once`, it goes on after an outage in which the
    turn was lost. Raises what it and `Turn.wait` raise.
    """
    done = Collected()
    while True:
        try:
            await turn.wait()
            turn.begin(collector)
            work = collector.run(queue, once=once, limit=limit, on_collected=on_collected, done=done)
            return await turn.during(work, collector)
        except (BrokerUnavailableError, LeaseLostError):
            if once:
                raise
            await clock.sleep(PAUSE_MS)


class Collecting:
    """What the workers of an app collect. `queues`: each with where its messages came from that do not say it. `run`
    goes on until it is cancelled; cancelling loses nothing.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        events: Events,
        *,
        queues: Mapping[str, str | None],
        system: str,
        owner: str,
        settings: Settings,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._events = events
        self._queues = dict(queues)
        self._system = system
        self._owner = owner
        self._settings = settings

    async def run(self) -> None:
        """All queues, side by side."""
        async with asyncio.TaskGroup() as group:
            for queue, origin in self._queues.items():
                group.create_task(self._follow(queue, origin))

    async def _follow(self, queue: str, origin: str | None) -> None:
        outage = Outage([queue], self._settings, clock=self._clock, events=self._events, of="collector")
        turn = Turn(self._backend.claims, self._clock, queue=queue, owner=self._owner)
        collector = self._collector(origin)
        while True:
            try:
                if await turn.take():
                    await self._have_turn(turn, queue, collector=collector, outage=outage)
                outage.succeeded()
            except LeaseLostError:
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, the messages stay where they are, and it is told
                await self._clock.sleep(outage.failed(error))
                continue
            await self._clock.sleep(LOOK_EVERY_MS)

    async def _have_turn(self, turn: Turn, queue: str, *, collector: AnyCollector, outage: Outage) -> None:
        turn.begin(collector)
        self._events.emit("collector.started", queue=queue, worker=self._owner)
        try:
            await turn.during(self._drain(collector, queue, outage), collector)
        finally:
            self._events.emit("collector.stopped", queue=queue, worker=self._owner)

    async def _drain(self, collector: AnyCollector, queue: str, outage: Outage) -> None:
        told: Counter[str] = Counter()
        while True:
            began_ms = self._clock.monotonic_ms()
            done: Collected = await collector.run(queue, once=True)
            outage.succeeded()
            for reason, count in done.left.items():
                if reason != OWN and count > told[reason]:
                    self._events.emit("collector.left", queue=queue, reason=reason, count=count)
            told = done.left
            # A long walk past what is left costs the broker something, and finds nothing.
            took_ms = self._clock.monotonic_ms() - began_ms if done.left and not done.taken else 0
            await self._clock.sleep(min(max(LOOK_EVERY_MS, took_ms * SHARE), LOOK_AT_LEAST_EVERY_MS))

    def _collector(self, origin: str | None) -> AnyCollector:
        backend, clock, events = self._backend, self._clock, self._events
        if backend.failed is not None:
            return FailedCollector(backend, backend.failed, clock, events=events, system=self._system)
        return Collector(backend, clock, events, system=self._system, worker=self._owner, as_queue=origin)
