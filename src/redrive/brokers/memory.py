"""MemoryBroker: queues in this process's memory, for tests and for trying things out. Nothing outlives the process.

A copy of a message is ready, scheduled or in hand. Three heaps per queue hold who is next in each of these; an
entry is void once its copy's `stamp` has moved on, so nothing is ever searched for or taken out of the middle.
Authoritative is the copy itself. A lease that ended makes its copy ready, but the old lease stays good until the
copy is really handed out again: only then its token moves.

In a fair queue the copies that are ready lie in one heap per group, and a scheduler says whose turn it is.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, assert_never

from redrive.core import settlement
from redrive.core.letters.letter import Attempt, AttemptOutcome
from redrive.core.message import Message
from redrive.core.policy import fairness, flow
from redrive.core.policy.fair import Fair
from redrive.core.policy.fairness import Scheduler, group_of
from redrive.core.policy.flow import Rate, Window
from redrive.core.ports import Clock, Depth, Features, Lease, Outgoing, Published, Received, Settle
from redrive.core.units import Millis, UnixMs
from redrive.errors import BrokerUnavailableError, InvalidMessageError, UnsupportedError

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Larger bodies are refused, as a broker over a network would."""

FULL_MS: Final[Millis] = 20
"""How soon a tenant that has as much in hand as it may is looked at again, by whoever has nothing else to do."""

FEATURES: Final = Features(
    name="memory",
    durable=False,
    leases=True,
    priorities=True,
    exact_delays=True,
    counts_starts=True,
    atomic=False,
    transactions=False,
    max_body_bytes=MAX_BODY_BYTES,
    fair=True,
    shared_rates=True,
)

_Entry: TypeAlias = tuple[int, ...]
"""What orders a copy, then its number and the stamp the entry was made with."""


@dataclass(slots=True, kw_only=True)
class _Copy:
    """One copy of a message in a queue. `lease_until` is None unless it is in hand."""

    number: int
    message: Message
    due_at: UnixMs
    starts: int = 0
    history: tuple[Attempt, ...] = ()
    token: int = 0
    stamp: int = 0
    lease_until: UnixMs | None = None
    started_at: UnixMs = 0
    worker: str = ""
    is_redelivered: bool = False


@dataclass(slots=True, kw_only=True)
class _Queue:
    """The copies of one queue and who is next."""

    name: str
    copies: dict[int, _Copy] = field(default_factory=dict)
    ready: list[_Entry] = field(default_factory=list)
    scheduled: list[_Entry] = field(default_factory=list)
    leased: list[_Entry] = field(default_factory=list)
    waiters: set[asyncio.Future[None]] = field(default_factory=set)
    turns: Turns | None = None
    window: flow.Window | None = None

    def place(self, copy: _Copy, now: UnixMs) -> None:
        """Put the copy where it belongs now; whatever entry it had is void."""
        copy.stamp += 1
        self.copies[copy.number] = copy
        if copy.lease_until is not None and copy.lease_until > now:
            heapq.heappush(self.leased, (copy.lease_until, copy.number, copy.stamp))
        elif copy.lease_until is None and copy.due_at > now:
            heapq.heappush(self.scheduled, (copy.due_at, copy.number, copy.stamp))
        else:
            entry = (copy.message.priority or 0, copy.due_at, copy.number, copy.stamp)
            heapq.heappush(self.ready if self.turns is None else self.turns.comes(copy.message.tenant), entry)

    def take(self, limit: int, now: UnixMs) -> list[_Copy]:
        """Take the next copies that can be handed out off their heaps."""
        for heap in (self.scheduled, self.leased):
            while (first := self.first(heap)) is not None and heap[0][0] <= now:
                heapq.heappop(heap)
                self.place(first, now)
        if self.window is not None:
            limit = min(limit, flow.room(self.window, now))
        taken = self._take_from(self.ready, limit) if self.turns is None else self._take_turns(self.turns, limit, now)
        if self.window is not None:
            self.window = flow.started(self.window, len(taken), now)
        return taken

    def _take_from(self, heap: list[_Entry], limit: int) -> list[_Copy]:
        taken: list[_Copy] = []
        while len(taken) < limit and (copy := self.first(heap)) is not None:
            heapq.heappop(heap)
            taken.append(copy)
        return taken

    def _take_turns(self, turns: Turns, limit: int, now: UnixMs) -> list[_Copy]:
        leased = [copy for copy in self.copies.values() if _is_leased(copy, now)] if turns.has_concurrency else []
        in_hand = Counter(group_of(copy.message.tenant) for copy in leased)
        taken: list[_Copy] = []
        while len(taken) < limit:
            groups = turns.next(limit - len(taken), now, in_hand=in_hand, live=self.first)
            if not groups:
                break
            for group in groups:
                # An entry further down may be void: then this turn is over without a start.
                copies = self._take_from(turns.ready[group], 1)
                turns.started(group, len(copies), now)
                in_hand[group] += len(copies)
                taken += copies
        return taken

    def next_event_at(self, now: UnixMs) -> UnixMs | None:
        """When the next copy falls due, the next lease ends, or a limit allows more; None where nothing is ahead."""
        instants = [heap[0][0] for heap in (self.scheduled, self.leased) if self.first(heap) is not None]
        if self.turns is not None:
            instants += self.turns.held.values()
        if self.window is not None and flow.room(self.window, now) < 1:
            instants.append(flow.free_at(self.window, now))
        return min(instants, default=None)

    def first(self, heap: list[_Entry]) -> _Copy | None:
        """The copy the first entry that is not void stands for."""
        while heap:
            copy = self.copies.get(heap[0][-2])
            if copy is not None and copy.stamp == heap[0][-1]:
                return copy
            heapq.heappop(heap)
        return None

    def held(self, lease: Lease) -> _Copy | None:
        """The copy this lease holds; None where it is stale."""
        copy = self.copies.get(lease.ref)
        return copy if copy is not None and copy.lease_until is not None and copy.token == lease.token else None

    def wake(self) -> None:
        """Let every waiting receiver look again."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class Turns:
    """The groups of one fair queue: what of each is ready, whose turn it is, and who is held back by a limit."""

    def __init__(self, queue: str, fair: Mapping[str, Fair]) -> None:
        self._queue = queue
        self._served = fair
        self._scheduler = Scheduler(batch=fair[queue].batch, step_for=self._step_for)
        self._windows: dict[str, Window] = {}
        self._mean = 0.0
        self.ready: dict[str, list[_Entry]] = {}
        self.held: dict[str, UnixMs] = {}

    @property
    def _fair(self) -> Fair:
        # Looked up each time: it may be changed while the broker is open.
        return self._served[self._queue]

    @property
    def has_concurrency(self) -> bool:
        """Whether it matters who has how many in hand."""
        return self._fair.has_concurrency

    def _step_for(self, group: str) -> int:
        return self._fair.step_for(group)

    def comes(self, tenant: str | None) -> list[_Entry]:
        """The heap of this tenant's group, which waits for its turn from now on."""
        group = group_of(tenant)
        if group not in self.held:
            self._scheduler.wait(group)
        return self.ready.setdefault(group, [])

    def next(
        self, limit: int, now: UnixMs, *, in_hand: Mapping[str, int], live: Callable[[list[_Entry]], _Copy | None]
    ) -> list[str]:
        """Whose messages start next, in order; [] where none may."""
        self._scheduler.batch = self._fair.batch
        for group in [group for group, until in self.held.items() if until <= now or self._fair.has_concurrency]:
            del self.held[group]
            self._scheduler.wait(group)
        return self._scheduler.take(limit, lambda group: self._room(group, now, in_hand=in_hand, live=live))

    def _room(
        self, group: str, now: UnixMs, *, in_hand: Mapping[str, int], live: Callable[[list[_Entry]], _Copy | None]
    ) -> int:
        heap = self.ready.get(group, [])
        if live(heap) is None:
            self.ready.pop(group, None)
            return 0
        room, limit = len(heap), self._fair.concurrency_of(group)
        if limit is not None and room > 0:
            room = min(room, limit - in_hand.get(group, 0))
            if room <= 0:
                self.held[group] = now + FULL_MS
        rate = self._fair.rate_of(group)
        if rate is not None and room > 0:
            window = self._windows.setdefault(group, Window(rate=rate))
            window = self._windows[group] = replace(window, rate=rate)
            room = min(room, flow.room(window, now))
            if room <= 0:
                self.held[group] = flow.free_at(window, now)
        return max(0, room)

    def ordered(self, ready: Sequence[_Copy]) -> list[_Copy]:
        """These copies, which are ready, in the order in which turns would be taken."""
        groups: dict[str, deque[_Copy]] = {}
        for copy in ready:
            groups.setdefault(group_of(copy.message.tenant), deque()).append(copy)
        starts = self._scheduler.preview({name: len(copies) for name, copies in groups.items()})
        return [groups[name].popleft() for name in starts]

    def started(self, group: str, count: int, now: UnixMs) -> None:
        """So many of the group were handed out."""
        if group in self._windows:
            self._windows[group] = flow.started(self._windows[group], count, now)

    def ended(self, tenant: str | None, took_ms: Millis) -> None:
        """A message was in hand for so long."""
        if self._fair.cost is not None:
            cost = max(1.0, took_ms)
            self._mean = fairness.mean_after(self._mean, cost)
            self._scheduler.charge(group_of(tenant), cost / self._mean)


class MemoryBroker:
    """A `Broker` in memory. One event loop; `renew` from any thread. Closing keeps what is queued."""

    def __init__(
        self, clock: Clock, *, fair: Mapping[str, Fair] | None = None, rates: Mapping[str, Rate] | None = None
    ) -> None:
        """`fair`, `rates`: the queues that are served in turns between tenants, or at a rate."""
        self._clock = clock
        self._fair = {} if fair is None else fair
        self._rates = {} if rates is None else rates
        self._queues: dict[str, _Queue] = {}
        self._published = 0
        # Guards every copy: the lease thread renews while the loop receives and settles.
        self._lock = threading.Lock()
        self._is_open = False

    @property
    def features(self) -> Features:
        """What this broker can do."""
        return FEATURES

    async def open(self) -> None:
        """Start taking calls."""
        self._is_open = True

    async def close(self) -> None:
        """Refuse further calls and let waiting receivers return empty-handed."""
        self._is_open = False
        for queue in self._queues.values():
            queue.wake()

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        """Put the messages into their queues, making a queue that was not there. All or nothing.

        Raises `InvalidMessageError` where a body is over the limit, `UnsupportedError` where an exchange is named.
        """
        self._check_open()
        for outgoing in batch:
            _check(outgoing)
        now = self._clock.now()
        with self._lock:
            queues = {outgoing.queue: self._queue(outgoing.queue) for outgoing in batch}
            for outgoing in batch:
                queues[outgoing.queue].place(self._new_copy(outgoing, now), now)
        for queue in queues.values():
            queue.wake()
        return [Published() for _ in batch]

    async def receive(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis
    ) -> list[Received]:
        """See `Broker.receive`."""
        give_up_at = self._clock.monotonic_ms() + wait_ms
        while True:
            self._check_open()
            with self._lock:
                source = self._queue(queue)
                taken = self._hand_over(source, limit=limit, lease_ms=lease_ms, worker=worker)
                event_at = source.next_event_at(self._clock.now())
            left_ms = give_up_at - self._clock.monotonic_ms()
            if taken or left_ms <= 0:
                return taken
            nap_ms = left_ms if event_at is None else min(left_ms, max(1, event_at - self._clock.now()))
            await self._pause(source, nap_ms)
            if not self._is_open:
                return []

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        """See `Broker.settle`."""
        self._check_open()
        with self._lock:
            answers = [self._settle_one(settle) for settle in batch]
        for name in {settle.lease.queue for settle in batch}:
            self._queue(name).wake()
        return answers

    def renew(self, batch: Sequence[Lease], *, lease_ms: Millis) -> list[bool]:
        """See `Broker.renew`."""
        now = self._clock.now()
        with self._lock:
            return [self._renew_one(lease, until=now + lease_ms, now=now) for lease in batch]

    async def depths(self, queues: Collection[str] = ()) -> list[Depth]:
        """Every queue that was ever published to or received from."""
        _ = queues
        now = self._clock.now()
        with self._lock:
            return [_depth(self._queues[name], now) for name in sorted(self._queues)]

    async def peek(self, queue: str, *, limit: int) -> list[Message]:
        """Ready messages in hand-over order, then scheduled ones by due time; none in hand."""
        with self._lock:
            return [copy.message for copy in self._waiting(queue)[:limit]]

    async def discard(self, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
        """See `Broker.discard`."""
        with self._lock:
            gone = [copy for copy in self._waiting(queue)[:limit] if is_gone(copy.message)]
            for copy in gone:
                del self._queues[queue].copies[copy.number]
        return len(gone)

    async def gone(self, workers: Collection[str]) -> set[str]:
        """None: whoever shares this memory ends with it."""
        _ = workers
        return set()

    def next_event_at(self) -> UnixMs | None:
        """When the next message of any queue falls due or the next lease ends; None where nothing is ahead."""
        with self._lock:
            now = self._clock.now()
            instants = [at for queue in self._queues.values() if (at := queue.next_event_at(now)) is not None]
        return min(instants, default=None)

    async def delete_queue(self, queue: str) -> None:
        """Remove the queue and what is in it, as an administrator would: the next publish makes an empty one."""
        with self._lock:
            gone = self._queues.pop(queue, None)
        if gone is not None:
            gone.wake()

    # What follows runs under the lock.

    def _waiting(self, queue: str) -> list[_Copy]:
        """What is not in hand, in order of hand-over."""
        now = self._clock.now()
        source = self._queues.get(queue)
        waiting = [] if source is None else [copy for copy in source.copies.values() if not _is_leased(copy, now)]
        ordered = sorted(waiting, key=lambda copy: _hand_over_order(copy, now))
        if source is None or source.turns is None:
            return ordered
        ready = [copy for copy in ordered if _ready_at(copy) <= now]
        return [*source.turns.ordered(ready), *ordered[len(ready) :]]

    def _queue(self, name: str) -> _Queue:
        if name not in self._queues:
            rate = self._rates.get(name)
            window = None if rate is None else flow.Window(rate=rate)
            turns = Turns(name, self._fair) if name in self._fair else None
            self._queues[name] = _Queue(name=name, turns=turns, window=window)
        return self._queues[name]

    def _new_copy(self, outgoing: Outgoing, now: UnixMs) -> _Copy:
        self._published += 1
        # A due time in the past is now: it does not overtake what was published before it.
        due_at = now if outgoing.due_at is None else max(now, outgoing.due_at)
        return _Copy(number=self._published, message=outgoing.message, due_at=due_at)

    def _hand_over(self, queue: _Queue, *, limit: int, lease_ms: Millis, worker: str) -> list[Received]:
        now = self._clock.now()
        taken: list[Received] = []
        for copy in queue.take(limit, now):
            if copy.lease_until is not None:
                _record_lost_start(copy)
            copy.token += 1
            copy.starts += 1
            copy.started_at, copy.worker, copy.lease_until = now, worker, now + lease_ms
            queue.place(copy, now)
            taken.append(_received(queue.name, copy))
        return taken

    def _settle_one(self, settle: Settle) -> bool:
        queue = self._queue(settle.lease.queue)
        copy = queue.held(settle.lease)
        if copy is None:
            return False
        if queue.turns is not None:
            queue.turns.ended(copy.message.tenant, self._clock.now() - copy.started_at)
        copy.lease_until = None
        copy.history += tuple(entry for entry in (settle.lost, settle.entry) if entry is not None)
        match settle.settlement:
            case settlement.Ack() | settlement.DeadLetter():
                del queue.copies[copy.number]
                return True
            case settlement.Retry(due_at=due_at, body=body):
                copy.due_at = due_at
                copy.message = copy.message if body is None else _rewritten(copy.message, body)
            case settlement.Requeue(due_at=due_at):
                copy.due_at = due_at
                copy.starts -= 1
            case _ as never:
                assert_never(never)
        queue.place(copy, self._clock.now())
        return True

    def _renew_one(self, lease: Lease, *, until: UnixMs, now: UnixMs) -> bool:
        queue = self._queues.get(lease.queue)
        copy = None if queue is None else queue.held(lease)
        if queue is None or copy is None:
            return False
        copy.lease_until = until
        queue.place(copy, now)
        return True

    # What follows does not.

    async def _pause(self, queue: _Queue, delay_ms: float) -> None:
        """Wait until something is put into the queue or the delay is over."""
        waiter = asyncio.get_running_loop().create_future()
        queue.waiters.add(waiter)
        sleep = asyncio.ensure_future(self._clock.sleep(delay_ms))
        try:
            await asyncio.wait((waiter, sleep), return_when=asyncio.FIRST_COMPLETED)
        finally:
            queue.waiters.discard(waiter)
            sleep.cancel()

    def _check_open(self) -> None:
        if not self._is_open:
            raise BrokerUnavailableError(
                "The in-memory broker is not open. Nothing was accepted by this call.", hint="Open it first."
            )


def _check(outgoing: Outgoing) -> None:
    if outgoing.exchange:
        raise UnsupportedError(
            f'The in-memory broker has no exchange "{outgoing.exchange}". Nothing was published.',
            hint="Publish to the queue itself.",
        )
    size = len(outgoing.message.body)
    if size > MAX_BODY_BYTES:
        raise InvalidMessageError(
            f'Message "{outgoing.message.id}" for queue "{outgoing.queue}" has {size} bytes, the limit is '
            f"{MAX_BODY_BYTES}. Nothing of its batch was published.",
            hint="Store the body elsewhere and send a reference to it.",
        )


def _record_lost_start(copy: _Copy) -> None:
    lost = Attempt(
        attempt=copy.starts,
        outcome=AttemptOutcome.INTERRUPTED,
        at=copy.started_at,
        worker=copy.worker,
    )
    copy.history = (*copy.history, lost)
    copy.is_redelivered = True


def _rewritten(message: Message, body: bytes) -> Message:
    return replace(message, body=body, original=message.original_body)


def _received(queue: str, copy: _Copy) -> Received:
    return Received(
        message=copy.message,
        lease=Lease(queue=queue, ref=copy.number, token=copy.token),
        lease_until=copy.lease_until,
        starts=copy.starts,
        position=str(copy.number),
        redelivered=copy.is_redelivered,
        history=copy.history,
    )


def _is_leased(copy: _Copy, now: UnixMs) -> bool:
    return copy.lease_until is not None and copy.lease_until > now


def _ready_at(copy: _Copy) -> UnixMs:
    return copy.due_at if copy.lease_until is None else copy.lease_until


def _hand_over_order(copy: _Copy, now: UnixMs) -> tuple[int, ...]:
    if _ready_at(copy) > now:
        return (1, copy.due_at, copy.number)
    return (0, copy.message.priority or 0, copy.due_at, copy.number)


def _depth(queue: _Queue, now: UnixMs) -> Depth:
    leased = sum(_is_leased(copy, now) for copy in queue.copies.values())
    ready = [_ready_at(copy) for copy in queue.copies.values() if _ready_at(copy) <= now]
    return Depth(
        queue=queue.name,
        ready=len(ready),
        scheduled=len(queue.copies) - leased - len(ready),
        leased=leased,
        oldest_ready_at=min(ready, default=None),
    )
