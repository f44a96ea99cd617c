"""Sorter: stands between the queues of a bundle and brings turns between tenants into the short one workers take from.

What is authoritative: the broker. The sorter holds a bounded number of messages of each source unacknowledged, asks the
desk (`core.policy.sorting`) whose turn it is and what has to go aside, publishes that (mandatory, confirmed) and only
then acknowledges it. There is one for a queue: every worker process tries, and the one whose connection holds an
exclusive queue of a known name is it. The broker deletes that the moment the connection ends.

Killed right here, what is true?
- before the publish: what was held goes back to where it lay, in its order.
- after it, before the acknowledgement: as before, and there is a copy under the same id in `mail.next` or an aside.
- the next one begins within about `TRY_MS`, once the broker has taken back what the last one held, and reads first
  what lies aside: within a tenant nothing overtakes, though some of it may come twice.

Consuming, lock and publishing share one connection: they end together, and where the broker stops to read from those
who publish (memory, disk) the sorter waits as a whole.

Anything that fails ends the round: the channels are closed, and a new round begins with what lies there. A message that
no queue takes (it does not fit into a frame any more) is left unacknowledged and passed over, until the next round.

Weak spots: it runs on the worker's own loop, so a handler that blocks the loop holds up the whole queue; one whose host
is gone without a word is missed after two of its heartbeats of ten seconds. A consumer of somebody else's on a source
is waited for (`OTHERS_MS`) and then suffered: within a tenant its messages and the sorter's may overtake each other. Of
more tenants with a backlog than there are own asides, those that share one wait for each other's turns there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from redrive.brokers.rabbitmq import frames
from redrive.brokers.rabbitmq.carrying import carried, group_in
from redrive.brokers.rabbitmq.connection import Lane
from redrive.brokers.rabbitmq.failures import ChannelLost, LinkLost
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.brokers.rabbitmq.publishing import Outcome, Parcel, Publisher
from redrive.brokers.rabbitmq.pushed import Pushed
from redrive.brokers.rabbitmq.taps import Tap
from redrive.core.message import Message
from redrive.core.policy import feeding
from redrive.core.policy.fair import Fair
from redrive.core.policy.feeding import Feed
from redrive.core.policy.sorting import Desk, Held
from redrive.core.ports import Clock
from redrive.core.topology.bundle import Bundle, shared_aside_of
from redrive.core.units import Millis
from redrive.errors import InvalidMessageError, RedriveError

TRY_MS: Final[Millis] = 500
"""Between two tries to be the one."""
OTHERS_MS: Final[Millis] = 5_000
"""How long the consumers of a sorter that is gone may take to vanish."""
CLOSE_MS: Final[Millis] = 2_000
"""How long a sorter that stops waits for confirms."""
READ_MS: Final[Millis] = 1_000
"""How long a round that begins waits for what lay in the sources; some of it may have gone elsewhere."""
LOOK_MS: Final[Millis] = 50
MAIN_WINDOW: Final = 512
SHARD_WINDOW: Final = 128
ASIDE_WINDOW: Final = 128
"""Messages held at once of the queue itself, of a shard, of an aside."""
MOVED_AT_ONCE: Final = 64
MOVES_UNDER_WAY: Final = 2
"""How many go aside in one piece, so that turns need not wait long, and in how many pieces that are not confirmed yet.
"""
LOCK: Final = "redrive.turns."

Sorted: TypeAlias = Held[tuple[Tap, Pushed]]
_Desk: TypeAlias = Desk[tuple[Tap, Pushed]]


def lock_of(queue: str) -> str:
    """The exclusive queue of whoever sorts this one."""
    return f"{LOCK}{hashlib.sha256(queue.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a sorter works with. `lane`: a connection of its own. `ensure`: has the bundle's queues there."""

    lane: Lane
    publisher: Publisher
    clock: Clock
    fair: Callable[[], Fair]
    ensure: Callable[[], Awaitable[None]]


class Sorter:
    """Tries to be the one that sorts this queue, and does so while it is. All methods belong to one event loop."""

    def __init__(self, bundle: Bundle, means: Means) -> None:
        self.bundle = bundle
        self._means = means
        self._task: asyncio.Task[None] | None = None
        self._round: Round | None = None

    @property
    def round(self) -> Round | None:
        """The round this process is sorting in; None: another one sorts, or nobody does."""
        return self._round

    def start(self) -> None:
        """Begin to try. More than once is fine."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop. What was held goes back."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(ChannelLost, LinkLost, RedriveError, TimeoutError):
                await self._lead()
            await self._means.clock.sleep(TRY_MS)

    async def _lead(self) -> None:
        """One round, if nobody else sorts. Raises where it ended."""
        means = self._means
        link = await means.lane.get(wait_ms=OTHERS_MS)
        lock = await Channel(link).open()
        try:
            # Refused as locked while another connection holds it.
            await lock.declare_queue(lock_of(self.bundle.queue), durable=False, exclusive=True)
            await means.ensure()
            counts = await self._counts(lock)
            self._round = Round(self.bundle, means, counts)
            await self._round.run(link)
        finally:
            ended, self._round = self._round, None
            if ended is not None:
                await ended.close()
            await lock.close()

    async def _counts(self, channel: Channel) -> dict[str, int]:
        """What is ready in each queue, once nobody reads the sources any more: what the last one held is back then."""
        until = self._means.clock.monotonic_ms() + OTHERS_MS
        while True:
            looks = {name: await channel.declare_queue(name, passive=True) for name in _read_by(self.bundle)}
            if not any(consumers for _, consumers in looks.values()) or self._means.clock.monotonic_ms() >= until:
                return {name: ready for name, (ready, _) in looks.items()}
            await self._means.clock.sleep(LOOK_MS)


def _read_by(bundle: Bundle) -> tuple[str, ...]:
    return (*bundle.asides, *bundle.sources)


class Round:
    """What one sorter does from the moment it is the one until something fails."""

    def __init__(self, bundle: Bundle, means: Means, counts: dict[str, int]) -> None:
        self._bundle = bundle
        self._means = means
        self._inner = frozenset(bundle.inner)
        self._limit = 0
        self._look: Channel | None = None
        self._lost = asyncio.Event()
        self._news = asyncio.Event()
        self._to_move = asyncio.Event()
        self._known = asyncio.Event()
        self._is_read = asyncio.Event()
        windows = _windows(bundle)
        self._unread = {each: min(counts[each], windows[each]) for each in bundle.sources if counts[each]}
        self._feed = Feed()
        self._under_way: set[asyncio.Future[None]] = set()
        self._starting: set[asyncio.Future[None]] = set()
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pause = asyncio.Lock()
        self._taps = {
            kind: Tap(partial(self._delivered, kind), self._lost.set)
            for kind in (bundle.queue, bundle.shards, bundle.asides)
        }
        self.desk: _Desk = Desk(
            _windows(bundle),
            own=bundle.own_asides,
            shared=bundle.shared_asides,
            shared_of=partial(shared_aside_of, asides=bundle.shared_asides),
            fair=means.fair,
            began_at=means.clock.now(),
        )
        for aside in bundle.asides:
            self.desk.found(aside, counts[aside])

    async def run(self, link: Link) -> None:
        """Sort until something fails. Raises what it was."""
        self._limit = link.frame_max - frames.OVERHEAD - frames.CONTENT_PREFIX
        self._look = await Channel(link).open()
        self._look.on_lost = lambda _: self._lost.set()
        for tap in self._taps.values():
            await tap.open(link)
        await self._read()
        jobs = [asyncio.ensure_future(job) for job in (self._move(), self._serve(), self._lost.wait(), self._fault)]
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def close(self) -> None:
        """Give back what is held, once what is on its way has arrived: it would be there twice."""
        if self._under_way and not self._lost.is_set():
            await asyncio.wait(self._under_way, timeout=CLOSE_MS / 1_000)
        for job in list(self._under_way):
            job.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for tap in self._taps.values():
            await tap.close()
        if self._look is not None:
            self._look.on_lost = None
            await self._look.close()

    # ------------------------------------------------------------------------------------------- reading

    async def _read(self) -> None:
        """First what lies aside; the others once it is known whose that is. Turns begin once it is known who waits."""
        bundle, windows = self._bundle, _windows(self._bundle)
        for aside in bundle.asides:
            await self._taps[bundle.asides].consume(aside, window=windows[aside])
        if not self.desk.is_ready:
            await asyncio.wait_for(self._known.wait(), OTHERS_MS / 1_000)
        for shard in bundle.shards:
            await self._taps[bundle.shards].consume(shard, window=windows[shard])
        await self._taps[bundle.queue].consume(bundle.queue, window=windows[bundle.queue])
        if self._unread:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_read.wait(), READ_MS / 1_000)
            self._unread.clear()

    def _delivered(self, kind: str | tuple[str, ...], pushed: Pushed) -> None:
        exchange, key = pushed.route
        if isinstance(kind, str):
            source = kind
        else:
            # Nobody but redrive sends there, through the default exchange.
            source = key if not exchange and key in kind else kind[-1]
        self.desk.arrived(Held(source, group_in(pushed), (self._taps[kind], pushed)))
        if self.desk.moves:
            self._to_move.set()
        self._news.set()
        if not self._known.is_set() and self.desk.is_ready:
            self._known.set()
        if source in self._unread:
            self._count_off(source)

    def _count_off(self, source: str) -> None:
        self._unread[source] -= 1
        if not self._unread[source]:
            del self._unread[source]
        if not self._unread:
            self._is_read.set()

    # ------------------------------------------------------------------------------------------- passing on

    async def _move(self) -> None:
        """Put aside what the desk says. The next piece goes while the last ones are confirmed: of a backlog that hides
        other tenants of its shard much has to go.
        """
        moves = self.desk.moves
        pieces: deque[asyncio.Future[None]] = deque()
        while True:
            await self._to_move.wait()
            self._to_move.clear()
            while moves:
                some = [moves.popleft() for _ in range(min(len(moves), MOVED_AT_ONCE))]
                pieces.append(self._begin(some, after=pieces[-1] if pieces else None))
                if len(pieces) >= MOVES_UNDER_WAY:
                    # Begun is carried out, also where the round is closed meanwhile.
                    await asyncio.shield(pieces.popleft())
                else:
                    await asyncio.sleep(0)

    async def _serve(self) -> None:
        """Keep `mail.next` short, and never empty while something may start."""
        clock = self._means.clock
        await self._look_at_next()
        while True:
            if not self.desk.can_start and self._feed.ready:
                # So that what comes next finds room at once.
                await self._look_at_next()
            if not self.desk.can_start:
                await self._wait_for_news()
            limit = feeding.room(self._feed)
            if not limit:
                await clock.sleep(max(0.0, feeding.look_at(self._feed) - clock.monotonic_ms()))
                await self._look_at_next()
                continue
            async with self._pause:
                taken = self.desk.take(limit, clock.now())
                if self.desk.moves:
                    self._to_move.set()
                if taken:
                    self._start(taken)
            # Where nothing was taken all that waits is held back, which the desk knows now.
            await clock.sleep(0)

    def _start(self, taken: Sequence[Sorted]) -> None:
        """On to `mail.next`; its confirm is not waited for, the next ones go meanwhile."""
        self._feed = feeding.sent(self._feed, len(taken))
        job = self._begin([(held, self._bundle.next) for held in taken])
        self._starting.add(job)
        job.add_done_callback(self._starting.discard)

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Everything that waits is in its place: nothing is under way to `mail.next`, and nothing begins."""
        async with self._pause:
            if self._starting:
                await asyncio.wait(self._starting)
            yield

    async def _wait_for_news(self) -> None:
        """Until something may start that could not a moment ago."""
        at = self.desk.next_at()
        self._news.clear()
        if at is None:
            await self._news.wait()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), max(1, at - self._means.clock.now()) / 1_000)

    async def _look_at_next(self) -> None:
        assert self._look is not None
        if self._starting:
            # What is not confirmed may not lie there yet, and would be taken for taken.
            await asyncio.wait(self._starting)
        ready, _ = await self._look.declare_queue(self._bundle.next, passive=True)
        self._feed = feeding.seen(self._feed, ready, self._means.clock.monotonic_ms())

    def _begin(
        self, some: Sequence[tuple[Sorted, str]], *, after: asyncio.Future[None] | None = None
    ) -> asyncio.Future[None]:
        job = asyncio.ensure_future(self._carry(some, after))
        self._under_way.add(job)
        job.add_done_callback(self._ended)
        return job

    def _ended(self, job: asyncio.Future[None]) -> None:
        self._under_way.discard(job)
        error = None if job.cancelled() else job.exception()
        if error is not None and not self._fault.done():
            self._fault.set_exception(error)

    async def _carry(self, some: Sequence[tuple[Sorted, str]], after: asyncio.Future[None] | None) -> None:
        """Publish, and acknowledge what is confirmed, once `after` is. Raises where something else went wrong than the
        message itself: nothing of it is acknowledged then, for the broker does not say which of them it was, nor of
        what came after it.
        """
        outcomes = await self._means.publisher.send([self._parcel(held, to) for held, to in some])
        if after is not None:
            await asyncio.shield(after)
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, InvalidMessageError):
                raise outcome
        self.let_go([held for (held, _), outcome in zip(some, outcomes, strict=True) if _is_done(outcome)])

    def let_go(self, some: Sequence[Sorted]) -> None:
        """Acknowledge these where they came from."""
        by_tap: dict[Tap, list[int]] = {}
        for held in some:
            tap, pushed = held.what
            by_tap.setdefault(tap, []).append(pushed.tag)
            self.desk.ended(held)
        for tap, tags in by_tap.items():
            tap.ack(tags)

    def _parcel(self, held: Sorted, to: str) -> Parcel:
        _, pushed = held.what
        header = carried(pushed, queue=self._bundle.queue, inner=self._inner, limit=self._limit)
        return Parcel(exchange="", routing_key=to, header=header, body=pushed.body, message_id="")

    # ------------------------------------------------------------------------------------------- looking

    def shown(self) -> list[Message]:
        """What waits here, in the order in which turns would be taken."""
        return [held.what[1].read().message for held in self.desk.preview()]

    def discard(self, is_gone: Callable[[Message], bool], limit: int) -> int:
        """Remove, of the first `limit` that wait here, those that are gone; how many."""
        first = set(map(id, self.desk.preview()[:limit]))
        gone = self.desk.remove(lambda held: id(held) in first and is_gone(held.what[1].read().message))
        self.let_go(gone)
        return len(gone)


def _windows(bundle: Bundle) -> dict[str, int]:
    return {
        bundle.queue: MAIN_WINDOW,
        **dict.fromkeys(bundle.shards, SHARD_WINDOW),
        **dict.fromkeys(bundle.asides, ASIDE_WINDOW),
    }


def _is_done(outcome: Outcome) -> bool:
    return outcome is None
