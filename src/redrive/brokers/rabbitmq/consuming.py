"""Inbox: what the broker has pushed of one queue, until somebody receives it and until it is settled.

States of a delivery: *buffered* (pushed, asked for by nobody yet), *in hand* (received), *resting* (handed back, but
due a little later), gone. Only *in hand* is the business of the runtime: a buffered or resting one is claimed by nobody
and counts no start; should the connection break, it is simply pushed again.

How much is pushed. The broker pushes up to the prefetch: deliveries that are not settled, in hand or not. It starts as
what is asked for plus what is in hand, so that other workers get what this one does not handle. Where the buffer is
emptied much faster than it could rest (handlers are quick) a second helping is pushed, so that no round trip is waited
for; of a short queue that is busy only a spare one for every few. Where messages lie in the buffer for `REST_MS` and
are not asked for, they go back to the queue, and pushing begins anew, smaller, with the next receive. The prefetch of a
consumer cannot be changed; for more, another consumer begins beside it on the same channel (a quorum queue puts what it
was just pushing to a consumer that is cancelled at its end).

What is in a channel belongs to that channel: its number is the token of each lease. Once the channel is gone (the
broker closed it, the connection broke, the queue was deleted) its leases are stale and the messages are pushed again.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from redrive.brokers.rabbitmq import frames
from redrive.brokers.rabbitmq.failures import ChannelLost, LinkLost, refused_queue, unavailable
from redrive.brokers.rabbitmq.headers import Arrived
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.brokers.rabbitmq.pushed import Pushed, Returned
from redrive.brokers.rabbitmq.taps import ack_frames
from redrive.core.message import Message
from redrive.core.ports import Clock, Received
from redrive.core.units import Millis

REST_MS: Final[Millis] = 1_000
"""How long messages may lie in the buffer before they go back to the queue."""
GRACE_MS: Final[Millis] = 20
"""How long an empty buffer is waited for before more is pushed: what has just ended is about to be acknowledged."""
QUICK: Final = 4
"""A second helping is pushed where the prefetch was emptied this often within `REST_MS`."""
HELPINGS: Final = 3
BUSY: Final = 10
BUSY_WAIT_MS: Final[Millis] = 10
"""A spare one of a short queue is pushed where the prefetch was emptied this often within `REST_MS`, and each message
was waited for no longer than a round trip: the queue had more all the time.
"""
SPARE: Final = 4
"""One for so many of the prefetch, at least one."""

_tokens: Final = itertools.count(1)
_PROCESS: Final = secrets.token_hex(6)


class InHand:
    """A delivery the runtime has. `copied`: its copy is confirmed, so that only the ack is left to do. `is_ending`: a
    settle has it.
    """

    __slots__ = ("copied", "deaths", "is_ending", "received")

    def __init__(self, received: Received, deaths: object) -> None:
        self.received = received
        self.deaths = deaths
        self.copied = False
        self.is_ending = False


class Inbox:
    """One queue's deliveries, on one channel. Made anew when that is lost. All methods belong to one event loop."""

    def __init__(self, queue: str, *, clock: Clock, max_prefetch: int, source: str | None = None) -> None:
        """`source`: the queue of the broker that is read, where it is not the queue itself: the short one of a fair
        queue, from which no more is pushed than is asked for, and few spare ones while it is busy.
        """
        self.queue = queue
        self._source = queue if source is None else source
        self._is_short = source is not None
        self.token = next(_tokens)
        self.mark = f"{_PROCESS}-{self.token}"
        """Names this channel among all that ever were."""
        self.in_hand: dict[int, InHand] = {}
        self.buffer: deque[Pushed] = deque()
        self.resting: dict[int, asyncio.TimerHandle] = {}
        self.on_early: Callable[[Pushed, Arrived], None] | None = None
        """Called with a delivery that is not due yet; it is then `resting`."""
        self._clock = clock
        self._max_prefetch = max_prefetch
        self._unsettled: dict[int, None] = {}
        self._channel: Channel | None = None
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._prefetch = 0
        self._needed = 0
        self._consumers: list[str] = []
        self._consumed = 0
        self._adapting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handed_over = 0
        self._is_quick = False
        self._is_busy = False
        self._waits = 0
        self._waited_ms = 0.0

    @property
    def is_lost(self) -> bool:
        """Whether its channel is gone, or not open yet."""
        return self._channel is None or not self._channel.is_open

    @property
    def lost(self) -> Exception | None:
        """Why."""
        return None if self._channel is None else self._channel.lost

    @property
    def channel(self) -> Channel | None:
        """Its channel, for questions about the queue that belong between its deliveries."""
        return self._channel

    async def open(self, link: Link) -> None:
        """Open the channel; nothing is pushed yet. Raises `ChannelLost`, `LinkLost`."""
        self._channel = await Channel(link).open(self)
        self._channel.on_lost = self._channel_lost
        self._channel.on_cancel = self._cancelled

    async def close(self) -> None:
        """Give everything back: what is in hand, too."""
        if self._timer is not None:
            self._timer.cancel()
        if self._adapting is not None:
            self._adapting.cancel()
        channel = self._channel
        if channel is not None:
            channel.on_lost = None
            await channel.close()
        self._drop_all()

    # ------------------------------------------------------------------------------------------- receiving

    async def take(self, limit: int, *, wait_ms: float) -> list[Pushed] | None:
        """At most `limit` deliveries that are due, within `wait_ms`; None: the channel was lost meanwhile."""
        until = self._clock.monotonic_ms() + wait_ms
        has_waited = False
        while True:
            taken = self._take(limit)
            if taken:
                return taken
            left_ms = until - self._clock.monotonic_ms()
            if self.is_lost:
                return None
            if not self._prefetch or self._is_quick or self._is_busy or has_waited or left_ms <= 0:
                self._demand(limit, is_sure=not self._prefetch or has_waited)
            if left_ms <= 0:
                return []
            await self._wait(limit, left_ms if self._prefetch and has_waited else min(left_ms, GRACE_MS))
            has_waited = True

    def _take(self, limit: int) -> list[Pushed]:
        taken: list[Pushed] = []
        buffer = self.buffer
        now = self._clock.now()
        while buffer and len(taken) < limit:
            pushed = buffer.popleft()
            arrived = pushed.read()
            if arrived.due_at is not None and arrived.due_at > now and self.on_early is not None:
                self.on_early(pushed, arrived)
            else:
                taken.append(pushed)
        self._handed_over += len(taken)
        return taken

    async def _wait(self, limit: int, wait_ms: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        entry = (limit, waiter)
        self._waiters.append(entry)
        begun = self._clock.monotonic_ms()
        try:
            await asyncio.wait_for(waiter, wait_ms / 1_000)
        except TimeoutError:
            pass
        finally:
            self._waits += 1
            self._waited_ms += self._clock.monotonic_ms() - begun
            if entry in self._waiters:
                self._waiters.remove(entry)
            elif self.buffer:
                # Woken, and cancelled before it took anything: the next one is to look.
                self._wake()

    def _wake(self) -> None:
        while self._waiters:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake()

    # ------------------------------------------------------------------------------------------- how much is pushed

    def _demand(self, limit: int, *, is_sure: bool) -> None:
        """Somebody waits for `limit` more: push enough. Unless that `is_sure`, some of what is in hand may have ended
        and be about to be acknowledged: of a short queue no more is pushed for it.
        """
        wanted = len(self.in_hand) + len(self.resting) + sum(more for more, _ in self._waiters) + limit
        if self._is_short:
            if is_sure:
                self._needed = max(self._needed, wanted)
            wanted = self._needed + (max(1, self._needed // SPARE) if self._is_busy else 0)
        elif self._is_quick:
            wanted *= HELPINGS
        wanted = min(max(1, wanted), self._max_prefetch)
        if self._adapting is None and wanted > self._prefetch:
            self._adapting = asyncio.create_task(self._push(wanted - self._prefetch))
            self._adapting.add_done_callback(self._adapted)

    async def _push(self, more: int) -> None:
        """Begin to push so many more."""
        channel = self._channel
        assert channel is not None
        # Each is at least as large as those before it, so that there are few.
        more = min(max(more, self._prefetch), self._max_prefetch - self._prefetch)
        self._consumed += 1
        tag = f"redrive-{self.token}-{self._consumed}"
        try:
            await channel.qos(more)
            self._prefetch += more
            self._consumers.append(tag)
            await channel.consume(self._source, tag)
        except (ChannelLost, LinkLost):
            return
        self._tick_later()

    def _adapted(self, task: asyncio.Task[None]) -> None:
        self._adapting = None
        if task.cancelled() or self.is_lost:
            return
        if self._waiters and not self.buffer:
            # Those who came meanwhile want more.
            self._demand(0, is_sure=False)

    def _tick_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REST_MS / 1_000, self._tick)

    def _tick(self) -> None:
        """Once a second: was what lies here asked for?"""
        self._timer = None
        if self.is_lost:
            return
        taken, self._handed_over = self._handed_over, 0
        waits, waited_ms, self._waits, self._waited_ms = self._waits, self._waited_ms, 0, 0.0
        self._is_quick = not self._is_short and taken >= QUICK * self._prefetch
        self._is_busy = self._is_short and taken >= BUSY * self._prefetch and waited_ms <= BUSY_WAIT_MS * max(1, waits)
        if self.buffer and taken < len(self.buffer) and self._adapting is None:
            self._adapting = asyncio.create_task(self._give_back())
            self._adapting.add_done_callback(self._adapted)
        elif self._consumers:
            self._tick_later()

    async def _give_back(self) -> None:
        channel = self._channel
        assert channel is not None
        try:
            for tag in self._consumers:
                await channel.cancel(tag)
        except (ChannelLost, LinkLost):
            return
        self._consumers.clear()
        self._prefetch = self._needed = 0
        # A quorum queue keeps this order, whether what comes back goes first there or last; a classic one has its own.
        tags = [pushed.tag for pushed in self.buffer]
        self.buffer.clear()
        self.requeue(tags)

    # ------------------------------------------------------------------------------------------- settling

    def hold(self, pushed: Pushed, received: Received) -> None:
        """It is in hand now."""
        self.in_hand[pushed.tag] = InHand(received, pushed.read().deaths)

    def ack(self, tags: Iterable[int]) -> None:
        """These are done. Where all up to one of them are, one frame says so."""
        channel = self._channel
        if channel is None or not channel.is_open:
            for tag in tags:
                self._unsettled.pop(tag, None)
            return
        channel.link.write(ack_frames(channel.number, self._unsettled, tags))

    def requeue(self, tags: Iterable[int]) -> None:
        """Back into the queue, now."""
        self._nack(tags, requeue=True)

    def reject(self, tags: Iterable[int]) -> None:
        """To wherever the broker's own dead-lettering takes them."""
        self._nack(tags, requeue=False)

    def _nack(self, tags: Iterable[int], *, requeue: bool) -> None:
        unsettled = self._unsettled
        known = [tag for tag in tags if unsettled.pop(tag, 0) is None]
        channel = self._channel
        if known and channel is not None and channel.is_open:
            channel.link.write(b"".join([frames.nack(channel.number, tag, requeue=requeue) for tag in known]))

    def rest(self, tag: int, delay_s: float, then: Callable[[int], None]) -> None:
        """Keep it back for a while; it is then given to `then`."""

        def over() -> None:
            if self.resting.pop(tag, None) is not None:
                then(tag)

        self.resting[tag] = asyncio.get_running_loop().call_later(delay_s, over)

    def end_rest(self, tag: int) -> bool:
        """Whether it was resting until now."""
        timer = self.resting.pop(tag, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def discard(self, is_gone: Callable[[Message], bool], limit: int) -> int:
        """Remove, of the first `limit` buffered ones, those that are gone; how many."""
        gone = [pushed for pushed in list(self.buffer)[:limit] if is_gone(pushed.read().message)]
        for pushed in gone:
            self.buffer.remove(pushed)
        self.ack(pushed.tag for pushed in gone)
        return len(gone)

    def put_back(self, pushed: Pushed) -> None:
        """It is due now: the next to be handed over."""
        self.buffer.appendleft(pushed)
        self._wake()

    def may_rest(self, *, more: int) -> bool:
        """Whether one may rest besides `more` others: at most half of the prefetch, so that the others go on."""
        return len(self.resting) + more < max(1, self._prefetch // 2)

    # ------------------------------------------------------------------------------------------- from the channel

    def delivered(self, pushed: Pushed) -> None:
        """See `Sink`."""
        if self._is_short and pushed.route == ("", self._source):
            pushed.route = ("", self.queue)
        self._unsettled[pushed.tag] = None
        self.buffer.append(pushed)
        if self._waiters:
            self._wake()

    def returned(self, back: Returned) -> None:
        """Nothing is published on this channel."""

    def confirmed(self, tag: int, *, multiple: bool, is_taken: bool) -> None:
        """Nothing is published on this channel."""

    def _cancelled(self) -> None:
        """The queue is gone. What was delivered is gone with it; its leases are stale."""
        channel = self._channel
        if channel is not None and channel.is_open:
            closing = asyncio.get_running_loop().create_task(channel.close())
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)
        self._drop_all()

    def _channel_lost(self, lost: Exception) -> None:
        _ = lost
        self._drop_all()

    def _drop_all(self) -> None:
        self._consumers.clear()
        self._prefetch = self._needed = 0
        self.in_hand.clear()
        self.buffer.clear()
        self._unsettled.clear()
        for timer in self.resting.values():
            timer.cancel()
        self.resting.clear()
        self._wake_all()


_CLOSING: Final[set[asyncio.Task[None]]] = set()
"""Channels that are being closed: a task nobody holds may vanish."""


def why_not(queue: str, lost: Exception | None, where: str) -> Exception:
    """The error of a receive whose channel is gone."""
    if isinstance(lost, ChannelLost):
        return refused_queue(queue, lost, doing="consumed")
    return unavailable(where, "the connection was lost" if lost is None else str(lost))
