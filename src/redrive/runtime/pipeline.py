"""Pipeline: one consumer's deliveries from the queue to their end, in batches.

    take ─→ start decision ─→ decode ─→ handler ─→ classify, decide ─→ commit
      ↑                                                                  │
      └──────────────── free slots, in one write with the commit ────────┘

What is authoritative: the ledger. This module keeps only what is in hand in this process: a delivery is in `in_hand`
from take to the end of its commit, and its lease is renewed as long.

A *pump* runs whenever something changed. It commits the ends that were decided since the last one and takes as many
messages as there are free slots, both in the same turn of the loop, so that a ledger that groups its writes makes one
of them. One take is under way at a time: two of half the slots would come back together all the same, because the
writer's answer and its next statement want the interpreter lock that the handlers then hold.

Failure by failure:
- take or commit raises: consuming pauses with a growing, jittered delay; decided ends are kept and committed again.
  Ends whose lease was lost meanwhile are refused by the fence and the message comes back.
- a commit raises on one element only (a bug, a text the store cannot hold): each element is committed alone, the one
  that fails is let go unsettled: its lease ends and it counts as a lost start.
- killed anywhere: what was in hand comes back when its lease ends, as a start that never ended.
- a take returns after `stop`: its deliveries are handed back and cost nothing.

Weak spot: a message is counted as started when it is taken. A kill between the take and the first line of the handler
costs it one attempt, and makes it a suspect, which runs alone the next time (see gate.py).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from redrive.core.attempt_field import with_attempt
from redrive.core.delivery import DeliveryState
from redrive.core.letters.letter import AttemptOutcome
from redrive.core.message import Message
from redrive.core.policy.control import Control
from redrive.core.policy.fair import Fair
from redrive.core.ports import End, Taken
from redrive.core.signals import Requeue, Signal
from redrive.core.topology.model import EMPTY
from redrive.core.units import Millis
from redrive.errors import InvalidMessageError, RedriveError
from redrive.runtime.consumer import Consumer, Kind
from redrive.runtime.decode import Undecodable
from redrive.runtime.delivery import CancelReason, Delivery
from redrive.runtime.endings import PAUSED, SHUTDOWN, Ended, Endings, is_hand_back
from redrive.runtime.gate import Gate
from redrive.runtime.outage import Outage
from redrive.runtime.processes import ProcessRunner
from redrive.runtime.runners import Runner, TaskRunner
from redrive.runtime.threads import ThreadRunner
from redrive.runtime.throttle import Throttle
from redrive.runtime.told import facts, tell_end, tell_processed

if TYPE_CHECKING:
    from redrive.runtime.app import Redrive

TAKE_WAIT_MS: Final[Millis] = 500
"""How long an empty take waits before it looks again."""

SUSPECTS_MS: Final[Millis] = 5_000
"""How long suspects may follow each other before the other consumers of this worker get a turn."""

MAX_TAKE: Final = 500
"""Messages in one take, so that one write stays short."""
MAX_COMMITS: Final = 2
"""Commits under way at once; what ends meanwhile goes together with the next."""

Processed = tuple[Delivery, float]
"""A delivery whose handler succeeded, and how long it took (ms)."""


class Pipeline:
    """One consumer in one worker. All methods belong to the event loop, except `request_cancel`."""

    def __init__(self, app: Redrive, consumer: Consumer, *, worker: str, gate: Gate) -> None:
        self.app = app
        self.consumer = consumer
        self.ledger = app.backend.ledger
        self.loop = asyncio.get_running_loop()
        # What a handler sets must reach neither the pump it causes nor the next handler.
        self.context = contextvars.copy_context()
        self.in_hand: dict[int, Delivery] = {}
        self._clock = app.clock
        self._events = app.events
        self._gate = gate
        self._worker = worker
        self._endings = Endings(
            consumer,
            system=app.name,
            version=app.version,
            clock=app.clock,
            worker=worker,
            topology=app.wired_topology() if app.backend.features.exchanges else EMPTY,
        )
        self._throttle = Throttle(consumer, app.clock, app.events, shares_rate=app.backend.features.shared_rates)
        # A take goes after ends that it may share a write with or that give it room. Else only a take is waited for.
        features, fair = self.ledger.features, consumer.fair or Fair()
        takes_last = features.atomic or not features.counts_starts or fair.has_concurrency
        self._steps = (self._flush, self._start_take) if takes_last else (self._start_take, self._flush)
        self._runner = _RUNNERS[consumer.kind](self)
        self._processed: list[Processed] = []
        self._ended: list[Ended] = []
        self._running = 0
        self._takes = 0
        self._commits = 0
        self._committing = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._pump_is_scheduled = False
        self._wakes_at: float | None = None
        self._has_suspects = False
        self._is_alone = False
        # The one that was started last, or ended instead.
        self._suspect: Delivery | None = None
        self._stopping = False
        self._drained = asyncio.Event()
        self._outage = Outage([consumer.queue], app.settings, clock=app.clock, events=app.events)
        self._is_paused = False
        self._is_held = False  # a person has paused the queue, or it is not known yet whether one has
        self._is_owing = False  # a commit has failed: until its ends are written nothing new is taken
        self.handed_back = 0
        gate.add(self)

    # ------------------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Begin to consume, unless held."""
        if self.consumer.timeout_ms is not None:
            self._spawn(self._watch_timeouts(self.consumer.timeout_ms))
        self.schedule_pump()

    def stop(self) -> None:
        """Take nothing more. What is in hand goes on."""
        self._stopping = True
        # A task cancelled before its first step never runs, and would never give its slots back: let it begin first.
        self.loop.call_soon(self._cancel_takes, context=self.context)
        self.schedule_pump()

    def hold(self) -> None:
        """Take nothing until `follow` is called: what people want of this queue is not known yet."""
        self._is_held = True

    def follow(self, control: Control | None) -> None:
        """Go by what people want now. Paused, nothing more is taken and what a take still brings is handed back."""
        self._endings.follow(control)
        self._is_held = control is not None and control.paused is not None
        if self._is_held:
            self.loop.call_soon(self._cancel_takes, context=self.context)
        self.schedule_pump()

    def _cancel_takes(self) -> None:
        for take in self._waiting:
            take.cancel()

    async def drained(self) -> None:
        """Returns once nothing is in hand any more; only after `stop`."""
        self.schedule_pump()
        await self._drained.wait()

    def interrupt(self) -> None:
        """Stop the handlers that can be stopped; each is handed back without cost as it ends."""
        for delivery in tuple(self.in_hand.values()):
            if delivery._is_open:
                self.request_cancel(delivery, CancelReason.SHUTDOWN)

    def hand_back(self) -> None:
        """Give back what is still open, whatever its handler does: only where this process ends right after."""
        for delivery in tuple(self.in_hand.values()):
            if delivery._is_open:
                self._end(self._endings.handed_back(delivery, SHUTDOWN, "The worker stopped before the end."))
        self._pump()

    def last_ends(self) -> list[End]:
        """What is still open, as hand-backs, for a commit outside of this loop."""
        open_ones = [each for each in tuple(self.in_hand.values()) if each._is_open]
        return [self._endings.handed_back(each, SHUTDOWN, "The worker was stopped by force.").end for each in open_ones]

    def close(self) -> None:
        """Let go of threads and processes; after it nothing is settled here."""
        self._runner.close()
        for task in self._tasks:
            task.cancel()

    @property
    def is_ready(self) -> bool:
        """Whether messages are consumed: not stopping, and the broker answers."""
        return not self._stopping and not self._outage.is_on

    def is_quiet(self, *, besides: int = 0) -> bool:
        """See `Quietable`."""
        return self._takes == 0 and self._running <= besides and self._unsettled() == 0

    def _unsettled(self) -> int:
        return len(self._processed) + len(self._ended) + self._committing

    # ------------------------------------------------------------------------------------------- pump

    def schedule_pump(self) -> None:
        """Pump at the end of this turn of the loop."""
        if not self._pump_is_scheduled:
            self._pump_is_scheduled = True
            self.loop.call_soon(self._pump, context=self.context)

    def _pump(self) -> None:
        self._pump_is_scheduled = False
        if not self._is_paused:
            self._steps[0]()
            self._steps[1]()
        if self._stopping and self.is_quiet():
            self._drained.set()
        self._gate.notify()

    def _start_take(self) -> None:
        concurrency = self.consumer.concurrency
        if self._stopping or self._is_held or self._takes or self._is_owing or not self._gate.is_open:
            return
        free = concurrency - self._running
        if free < 1 or self._unsettled() > 2 * concurrency:
            return
        limit = self._throttle.grant(1 if self._has_suspects else min(free, MAX_TAKE))
        if limit < 1:
            self._wake_later()
            return
        self._takes += 1
        waiting = self._spawn(self._take(limit, wait_ms=TAKE_WAIT_MS))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)

    def _wake_later(self) -> None:
        """Pump again when rate or breaker allow something."""
        wait = self._throttle.wait_ms()
        if wait is None:
            return
        at = self._clock.monotonic_ms() + wait
        if self._wakes_at is None or at < self._wakes_at:
            self._wakes_at = at
            self._spawn(self._wake(wait, at))

    async def _wake(self, wait: Millis, at: float) -> None:
        await self._clock.sleep(max(1, wait))
        if self._wakes_at == at:
            self._wakes_at = None
        self.schedule_pump()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(coroutine, context=self.context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------------------------------- take and start

    async def _take(self, limit: int, *, wait_ms: Millis) -> None:
        consumer = self.consumer
        batch: list[Taken] = []
        try:
            batch = await self.ledger.take(
                consumer.queue,
                limit=limit,
                lease_ms=consumer.lease_ms,
                worker=self._worker,
                wait_ms=wait_ms,
                claims=consumer.idempotency,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known to be taken; leases bring it back
            self._unavailable(error)
        else:
            self._available()
        finally:
            # Also where it was cancelled, by a stop or a pause: it has taken nothing then.
            self._takes -= 1
            self._throttle.give_back(limit, len(batch))
            self.schedule_pump()
        self._running += len(batch)
        if batch:
            self._start_batch(batch)

    def _start_batch(self, batch: list[Taken]) -> None:
        now = self._clock.now()
        lease_ms = self.consumer.lease_ms
        attempt_of, in_hand = self._endings.attempt_of, self.in_hand
        suspects = []
        for taken in batch:
            received = taken.received
            until = received.lease_until
            delivery = Delivery(
                self,
                taken,
                attempt=attempt_of(taken),
                started_at=now,
                lease_until=now + lease_ms if until is None else until,
            )
            in_hand[id(delivery)] = delivery
            history = received.history
            if history and history[-1].outcome is AttemptOutcome.INTERRUPTED:
                suspects.append(delivery)
            elif self._stopping or self._is_held:
                self._end(self._unstarted(delivery))
            else:
                self._begin(delivery, now)
        self._has_suspects = bool(suspects)
        if suspects:
            self._start_suspects(suspects)
        without_key = sum(taken.received.message.key is None for taken in batch)
        self._events.emit("deliveries.taken", queue=self.consumer.queue, count=len(batch), without_key=without_key)

    def _start_suspects(self, suspects: list[Delivery]) -> None:
        """Run the first alone and hand the others back: what kills this process must not take theirs with it."""
        now = self._clock.now()
        for delivery in suspects:
            ended = self._endings.before_start(delivery, now)
            if ended is not None:
                self._suspect = self._suspect or delivery
                if ended.end.letter is not None:
                    self._tell_interrupted(delivery)
                self._end(ended)
            elif self._stopping or self._is_held:
                self._end(self._unstarted(delivery))
            elif self._is_alone:
                self._suspect = delivery
                self._tell_interrupted(delivery)
                self._begin(delivery, now)
            elif not self._gate.hold(self):
                self._end(self._endings.handed_back(delivery, "SUSPECT_WAITS", "Waits until it can run alone."))
            else:
                self._suspect = delivery
                self._tell_interrupted(delivery)
                self._spawn(self._run_alone(delivery))

    async def _run_alone(self, delivery: Delivery) -> None:
        """This suspect, and while the gate is held anyway those behind it, one after the other."""
        try:
            await self._gate.quiet()
            if delivery._is_open and not self._stopping and not self._is_held:
                self._begin(delivery, self._clock.now())
            elif delivery._is_open:
                self._end(self._unstarted(delivery))
            else:
                self._late(delivery, None)
            await self._gate.ended(self._suspect_is_over)
            self._is_alone = True
            over_at = self._clock.monotonic_ms() + SUSPECTS_MS
            while self._suspect_is_over() and self._clock.monotonic_ms() < over_at and await self._take_suspect():
                await self._gate.ended(self._suspect_is_over)
        finally:
            self._is_alone = False
            self._suspect = None
            self._gate.release()

    def _suspect_is_over(self) -> bool:
        """Whether its end is written, too. What ran before it may run on: the gate has waited for that."""
        return self._suspect is None or id(self._suspect) not in self.in_hand

    async def _take_suspect(self) -> bool:
        """Take one more while alone; False: there is none, or it is no suspect and others may run beside it."""
        if self._stopping or self._is_held or self._is_paused or self._is_owing or self._takes:
            return False
        if self._throttle.grant(1) < 1:
            return False
        self._takes += 1
        self._suspect = None
        await self._take(1, wait_ms=0)
        return self._suspect is not None

    def _unstarted(self, delivery: Delivery) -> Ended:
        why = (SHUTDOWN, "The worker stops; not started.") if self._stopping else (PAUSED, "Paused; not started.")
        return self._endings.handed_back(delivery, *why)

    def _tell_interrupted(self, delivery: Delivery) -> None:
        last = delivery._taken.received.history[-1]
        self._events.emit("delivery.interrupted", **{**facts(delivery), "attempt": last.attempt}, worker=last.worker)

    def _begin(self, delivery: Delivery, now: Millis) -> None:
        ended = self._endings.before_start(delivery, now)
        if ended is not None:
            # What does not start does not count: one tenant's messages set aside must not use up the others' rate.
            self._throttle.give_back(1, 0)
            self._end(ended)
            return
        delivery._state = DeliveryState.RUNNING
        if self.consumer.timeout_ms is not None:
            delivery._deadline = now + self.consumer.timeout_ms
        self._runner.start(delivery)

    def payload(self, delivery: Delivery) -> Any:
        """What the handler is called with. Raises `Undecodable`."""
        return self.consumer.decode(self._shown(delivery))

    def _shown(self, delivery: Delivery) -> Message:
        """The message as the handler sees it: its attempt field tells the true attempt, lost starts included."""
        message, name = delivery._message, self.consumer.attempt_field
        if name is None:
            return message
        body = with_attempt(message.body, name, delivery._attempt)
        if body is None or body == message.body:
            return message
        delivery._show(body)
        return delivery._message

    # ------------------------------------------------------------------------------------------- handler ends

    def returned(self, delivery: Delivery, result: Any) -> None:
        """The handler came to its end; called by the runner."""
        if not delivery._is_open:
            self._late(delivery, None)
            return
        if self.consumer.http_status and result is not None:
            outcome = self._endings.returned_status(result, self._clock.now())
            if outcome is not None:
                self._fail(delivery, outcome, None)
                return
        delivery._state = DeliveryState.SETTLED
        self._running -= 1
        duration = self._clock.monotonic_ms() - delivery._started_ms
        self._processed.append((delivery, duration))
        self._throttle.succeeded()
        if not self._pump_is_scheduled:
            self._pump_is_scheduled = True
            self.loop.call_soon(self._pump, context=self.context)

    def raised(self, delivery: Delivery, error: BaseException) -> None:
        """The handler raised or was stopped; called by the runner."""
        if not delivery._is_open:
            self._late(delivery, error)
            return
        if isinstance(error, Undecodable):
            self._end(self._endings.undecodable(delivery, error, self._clock.now()))
            return
        outcome = self._endings.outcome_of(delivery, error, self._clock.now())
        if delivery._cancel_reason is CancelReason.SHUTDOWN and not isinstance(outcome, Signal):
            self._end(self._endings.handed_back(delivery, SHUTDOWN, "The worker stopped before the end."))
            return
        self._fail(delivery, outcome, error)

    def processed_end(self, delivery: Delivery) -> End:
        """The end of a delivery whose handler succeeded."""
        return self._endings.processed(delivery, self._clock.now())

    def request_cancel(self, delivery: Delivery, reason: CancelReason) -> None:
        """Have the handler stopped. Called from the loop and from the lease keeper's thread."""
        if reason is CancelReason.LEASE_LOST:
            delivery._state = DeliveryState.LOST
        delivery._cancel(reason)
        self._runner.cancel(delivery, reason)

    def _fail(self, delivery: Delivery, outcome: Any, error: BaseException | None) -> None:
        ended = self._endings.failed(delivery, outcome, error, now=self._clock.now())
        self._throttle.failed(None if isinstance(outcome, Requeue) else ended.failure)
        self._end(ended)

    def _late(self, delivery: Delivery, error: BaseException | None) -> None:
        """The handler of a delivery that is settled or lost already has come to its end."""
        if delivery._committed:
            self._running -= 1
            duration = self._clock.monotonic_ms() - delivery._started_ms
            if self.ledger.features.atomic:
                self.in_hand.pop(id(delivery), None)
                tell_processed(self._events, self.consumer.queue, [(delivery, round(duration))])
            else:
                # Its effects and its key are durable; the broker still holds the message.
                self._processed.append((delivery, duration))
            self._throttle.succeeded()
            if error is not None and not isinstance(error, asyncio.CancelledError):
                self._events.emit("delivery.failed_after_commit", **self._named(delivery), error_text=repr(error)[:500])
        elif delivery._state is DeliveryState.LOST:
            self._running -= 1
            self.in_hand.pop(id(delivery), None)
            self._throttle.abandoned()
            self._events.emit("delivery.lease_lost", **self._named(delivery))
        self.schedule_pump()

    def _named(self, delivery: Delivery) -> dict[str, str]:
        return {"queue": self.consumer.queue, "message_id": delivery._message.id}

    def _end(self, ended: Ended) -> None:
        ended.delivery._state = DeliveryState.SETTLED
        self._running -= 1
        self._ended.append(ended)
        # A probe that never reached the handler, or told nothing, must not keep the breaker waiting for its answer.
        self._throttle.abandoned()
        self.schedule_pump()

    async def _watch_timeouts(self, timeout_ms: Millis) -> None:
        """All attempts of a consumer have one limit, so the oldest in hand is the next to run over it."""
        while True:
            now = self._clock.monotonic_ms()
            nearest = now + timeout_ms
            for delivery in tuple(self.in_hand.values()):
                is_running = delivery._state is DeliveryState.RUNNING and delivery._cancel_reason is None
                if not (is_running and delivery._started_ms):
                    continue
                until = delivery._started_ms + timeout_ms
                if until <= now:
                    self._events.emit("delivery.timed_out", **self._named(delivery), timeout_ms=timeout_ms)
                    self.request_cancel(delivery, CancelReason.TIMEOUT)
                else:
                    nearest = min(nearest, until)
            await self._clock.sleep(nearest - now)

    # ------------------------------------------------------------------------------------------- commit

    def _flush(self) -> None:
        if not (self._processed or self._ended) or self._commits >= MAX_COMMITS:
            return
        processed, self._processed = self._processed, []
        ended, self._ended = self._ended, []
        self._commits += 1
        self._committing += len(processed) + len(ended)
        self._spawn(self._commit(processed, ended))

    async def _commit(self, processed: list[Processed], ended: list[Ended]) -> None:
        now = self._clock.now()
        processed_end = self._endings.processed
        ends = [*(processed_end(delivery, now) for delivery, _ in processed), *(each.end for each in ended)]
        settled: Sequence[bool | None] = ()
        try:
            settled = await self.ledger.commit(ends)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            settled = await self._commit_apart(ends, error)
        finally:
            self._commits -= 1
            self._committing -= len(ends)
        first = min(len(settled), len(processed))
        second = len(settled) - first
        self._processed[:0] = processed[first:]
        self._ended[:0] = ended[second:]
        self._is_owing = len(settled) < len(ends)
        if not self._is_owing:
            self._available()
        self._settled(processed[:first], ended[:second], settled)
        self.schedule_pump()

    async def _commit_apart(self, ends: list[End], error: Exception) -> list[bool | None]:
        """One by one, where the batch failed for a reason that is no outage. An element's None: told already. Where it
        was an outage, or one comes in between, the answer is shorter than the ends: the rest is still owed.
        """
        if isinstance(error, RedriveError) and not isinstance(error, InvalidMessageError):
            self._unavailable(error)
            return []
        if len(ends) == 1:
            self._events.emit(
                "delivery.unsettled",
                queue=self.consumer.queue,
                message_id=ends[0].taken.received.message.id,
                error_text=repr(error)[:500],
            )
            return [None]
        settled: list[bool | None] = []
        for end in ends:
            try:
                settled += await self.ledger.commit([end])
            except Exception as own:  # noqa: BLE001
                settled += (apart := await self._commit_apart([end], own))
                if not apart:
                    break
        return settled

    def _settled(self, processed: list[Processed], ended: list[Ended], settled: Sequence[bool | None]) -> None:
        told = []
        in_hand = self.in_hand
        for (delivery, duration), is_settled in zip(processed, settled, strict=False):
            in_hand.pop(id(delivery), None)
            if is_settled:
                told.append((delivery, round(duration)))
            elif is_settled is not None:
                self._events.emit("delivery.lease_lost", **self._named(delivery))
        tell_processed(self._events, self.consumer.queue, told)
        for each, is_settled in zip(ended, settled[len(processed) :], strict=True):
            in_hand.pop(id(each.delivery), None)
            if is_settled:
                self.handed_back += is_hand_back(each)
                tell_end(self._events, each)
            elif is_settled is not None:
                self._events.emit("delivery.lease_lost", **self._named(each.delivery))

    # ------------------------------------------------------------------------------------------- outage

    def _unavailable(self, error: Exception) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._spawn(self._try_again(self._outage.failed(error)))

    async def _try_again(self, delay: Millis) -> None:
        await self._clock.sleep(delay)
        self._is_paused = False
        self.schedule_pump()

    def _available(self) -> None:
        if not self._is_paused and not self._is_owing:
            self._outage.succeeded()


_RUNNERS: Final[dict[Kind, Callable[[Pipeline], Runner]]] = {
    Kind.ASYNC: TaskRunner,
    Kind.THREAD: ThreadRunner,
    Kind.PROCESS: ProcessRunner,
}
