"""RabbitBroker: the `Broker` port over RabbitMQ, 3.10 to 4.x, classic and quorum queues, no plugin.

Who does what: `connection` keeps two connections open (`link` is one of them); `publishing` sends with confirms,
`consuming` holds what was pushed, `settling` ends it by the `routes` of its queue; `declaring` sees to it that queues
are there; `headers` and `tables` are a message on the wire; `looking` looks at queues, `workers` at who lives.

What is authoritative: the broker. A delivery belongs to the channel it was pushed on, so there are no leases that could
run out: a lease is valid as long as its channel, and a message whose channel is gone is pushed again.

Failure by failure:
- connection lost: everything in hand is stale, and pushed again, to anybody. Publishes wait and are sent again.
  `receive` raises `BrokerUnavailableError` until it stands again.
- the broker blocks publishers (memory, disk): publishes wait, and fail after their time; acks go on.
- channel closed (a consumer timeout, a missing permission), queue deleted: as a lost connection, for that queue.
- killed: what was pushed and not acknowledged is pushed again; a copy that was published and whose original was not
  acknowledged is there beside it, under the same id.

Weak spots: acks carry no confirm, so a message that was acknowledged just before a cut can come again; a settle says
True all the same. A broker that is killed with -9 within about half a second after a quorum queue was made forgets what
it has confirmed in it (measured on 3.10 and 4.0: it writes its registry of such queues every 500 ms). `depths` counts
as scheduled only what this process has delayed: the delay ladder is shared, and no one can ask it for the messages of
one queue.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

from redrive.brokers.rabbitmq import frames, looking
from redrive.brokers.rabbitmq.address import parse
from redrive.brokers.rabbitmq.bundles import Bundles
from redrive.brokers.rabbitmq.connection import Lane
from redrive.brokers.rabbitmq.consuming import Inbox, why_not
from redrive.brokers.rabbitmq.declaring import Declarer
from redrive.brokers.rabbitmq.failures import ChannelLost, LinkLost, refused_queue, unavailable
from redrive.brokers.rabbitmq.headers import Arrived
from redrive.brokers.rabbitmq.link import Link
from redrive.brokers.rabbitmq.publishing import Outcome, Publisher
from redrive.brokers.rabbitmq.pushed import Pushed
from redrive.brokers.rabbitmq.routes import Copy, Routes
from redrive.brokers.rabbitmq.session import errand
from redrive.brokers.rabbitmq.settling import Settler
from redrive.brokers.rabbitmq.workers import Workers
from redrive.core.message import Message
from redrive.core.policy.fair import Fair
from redrive.core.ports import Clock, Depth, Features, Lease, Outgoing, Published, Received, Settle
from redrive.core.text import cut
from redrive.core.topology.bundle import bundle_of, with_bundles
from redrive.core.topology.ladder import Level
from redrive.core.topology.model import EMPTY, Topology
from redrive.core.topology.names import MAX_NAME_BYTES, RESERVED, name_bytes
from redrive.core.units import Millis, UnixMs
from redrive.errors import BrokerUnavailableError, InvalidMessageError, RedriveError

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""What a RabbitMQ of 4.x takes by default (before it was 128 MiB)."""

FEATURES: Final = Features(
    name="rabbitmq",
    durable=True,
    leases=False,
    priorities=False,
    exact_delays=False,
    counts_starts=False,
    atomic=False,
    transactions=False,
    max_body_bytes=MAX_BODY_BYTES,
    exchanges=True,
    fair=True,
)

MAX_TRIES: Final = 3
"""How often a publish looks for its queues, where the connection is lost meanwhile."""
HELD_MS: Final[Millis] = 500
"""A delayed message that is early by less is held until it is due; by more, it goes round again."""
LOOK_WAIT_MS: Final[Millis] = 5_000
"""How long a look at a queue waits for a connection that is being made again."""
MAX_SCHEDULED: Final = 100_000
"""Due times remembered per queue, for `depths`."""


class RabbitBroker:
    """A `Broker` on RabbitMQ. `topology`: what is declared, and how its queues retry. `fair`: by queue, how turns are
    taken between tenants (see `sorter`); its values may change while it is used.
    """

    def __init__(
        self, url: str, *, clock: Clock, topology: Topology = EMPTY, fair: Mapping[str, Fair] | None = None
    ) -> None:
        """Connects to nothing yet. Raises `ConfigurationError` for a URL that is none."""
        self._address = parse(url)
        self._clock = clock
        self._main = Lane(self._address, clock=clock, purpose="deliveries")
        self._out = Lane(self._address, clock=clock, purpose="publishing")
        self._publisher = Publisher(self._out, timeout_ms=self._address.publish_timeout_ms)
        self._bundles = Bundles({} if fair is None else fair, address=self._address, clock=clock)
        self._declarer = Declarer(
            self._main,
            with_bundles(topology, self._bundles.queues),
            wait_ms=self._address.publish_timeout_ms,
            inner=self._bundles.inner,
        )
        self._workers = Workers()
        self._routes = Routes(topology, self._bundles.queues)
        self._inboxes: dict[str, Inbox] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._settler = Settler(self._inboxes, self._routes, clock=clock, send=self._send)
        self._scheduled: dict[str, list[UnixMs]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._publisher.on_missing = self._declarer.forget
        self._main.on_lost = self._lost

    @property
    def features(self) -> Features:
        """What this broker can do."""
        return FEATURES

    async def open(self) -> None:
        """Connect, and declare the topology. Raises `ConfigurationError` (wrong credentials, a queue that is there with
        other arguments), `UnsupportedError` (a `Fair` it cannot keep) or `BrokerUnavailableError`; nothing is left open
        then.
        """
        self._bundles.check()
        try:
            link = await self._main.start()
            self._routes.max_header_bytes = link.frame_max - frames.OVERHEAD - frames.CONTENT_PREFIX
            await self._declarer.open()
        except BaseException:
            await self._main.close()
            raise
        self._is_open = True

    async def close(self) -> None:
        """Hand everything back and disconnect. May be called twice."""
        self._is_open = False
        self._declarer.close()
        for task in self._tasks:
            task.cancel()
        await self._bundles.close()
        for inbox in self._inboxes.values():
            await inbox.close()
        self._inboxes.clear()
        await self._publisher.close()
        await self._out.close()
        await self._main.close()

    # ------------------------------------------------------------------------------------------- publishing

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        """See `Broker.publish`. A queue that is not there is made; a queue behind an exchange is not.

        Raises `InvalidMessageError` where a name or a body is over a limit (nothing was sent then),
        `QueueNotFoundError` where no queue takes a message, `BrokerUnavailableError` where a confirm did not come: the
        text says of which message, and what is known of it.
        """
        if not batch:
            return []
        self._check_open()
        for outgoing in batch:
            _check(outgoing)
        now = self._clock.now()
        copies = [self._routes.first(outgoing, now) for outgoing in batch]
        direct = {outgoing.queue for outgoing in batch if not outgoing.exchange}
        shards = (
            {copy.parcel.routing_key for copy in copies if not copy.parcel.exchange} if self._bundles.queues else ()
        )
        await self._ensure(direct.union(shards), copies)
        outcomes = await self._send(copies)
        failed = [outcome for outcome in outcomes if outcome is not None]
        if failed:
            raise _with_count(failed, len(batch))
        for outgoing in batch:
            if outgoing.due_at is not None and outgoing.due_at > now and not outgoing.exchange:
                self._remember(outgoing.queue, outgoing.due_at)
        return [Published() for _ in batch]

    async def _ensure(self, queues: Collection[str], copies: Sequence[Copy]) -> None:
        """Queues and levels are there once this returns, though the connection be lost on the way."""
        until = self._clock.monotonic_ms() + self._address.publish_timeout_ms
        for last in range(1, MAX_TRIES + 1):
            try:
                for queue in queues:
                    await self._declarer.ensure(queue)
                await self._declarer.ensure_levels(_levels(copies))
            except BrokerUnavailableError:
                if last == MAX_TRIES:
                    raise
                await self._main.get(wait_ms=until - self._clock.monotonic_ms())
            else:
                return

    async def _send(self, copies: Sequence[Copy]) -> list[Outcome]:
        await self._declarer.ensure_levels(_levels(copies))
        return await self._publisher.send([copy.parcel for copy in copies])

    def _remember(self, queue: str, due_at: UnixMs) -> None:
        due = self._scheduled.setdefault(queue, [])
        if len(due) < MAX_SCHEDULED:
            heapq.heappush(due, due_at)

    # ------------------------------------------------------------------------------------------- receiving

    async def receive(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis
    ) -> list[Received]:
        """See `Broker.receive`. `lease_ms` means nothing here: a delivery is held as long as its channel stands."""
        _ = lease_ms
        self._check_open()
        check_name(queue)
        inbox = await self._inbox(queue, worker, wait_ms=wait_ms)
        taken = await inbox.take(limit, wait_ms=wait_ms)
        if taken is None:
            if not self._is_open:
                return []
            raise why_not(queue, inbox.lost, self._main.where)
        return [self._received(inbox, pushed) for pushed in taken]

    async def _inbox(self, queue: str, worker: str, *, wait_ms: float) -> Inbox:
        found = self._inboxes.get(queue)
        if found is not None and not found.is_lost and self._workers.knows(worker):
            return found
        async with self._turns.setdefault(queue, asyncio.Lock()):
            link = await self._main.get(wait_ms=wait_ms)
            try:
                await self._workers.be_here(link, worker)
                found = self._inboxes.get(queue)
                if found is None or found.is_lost:
                    found = await self._new_inbox(queue, link)
            except ChannelLost as lost:
                raise refused_queue(queue, lost, doing="consumed") from lost
            except LinkLost as lost:
                raise unavailable(self._main.where, lost.text) from lost
            return found

    async def _new_inbox(self, queue: str, link: Link) -> Inbox:
        self._declarer.forget(queue)
        await self._declarer.ensure(queue)
        bundle = self._bundles.of(queue)
        if bundle is not None:
            await self._bundles.ensure(queue, self._declarer)
        source = None if bundle is None else bundle.next
        inbox = Inbox(queue, clock=self._clock, max_prefetch=self._address.max_prefetch, source=source)
        inbox.on_early = lambda pushed, arrived: self._early(inbox, pushed, arrived)
        await inbox.open(link)
        self._inboxes[queue] = inbox
        if bundle is not None:
            self._bundles.sort(queue, self._declarer)
        return inbox

    def _received(self, inbox: Inbox, pushed: Pushed) -> Received:
        arrived = pushed.read()
        received = Received(
            message=arrived.message,
            lease=Lease(queue=inbox.queue, ref=pushed.tag, token=inbox.token),
            lease_until=None,
            starts=None,
            position=f"{inbox.mark}:{pushed.tag}",
            redelivered=pushed.redelivered,
            history=arrived.history,
        )
        inbox.hold(pushed, received)
        return received

    def _early(self, inbox: Inbox, pushed: Pushed, arrived: Arrived) -> None:
        """A delayed copy that came before its time: clocks differ, or its delay is longer than the longest level."""
        assert arrived.due_at is not None
        early_ms = arrived.due_at - self._clock.now()
        if early_ms <= HELD_MS:
            inbox.rest(pushed.tag, early_ms / 1_000, lambda _: inbox.put_back(pushed))
            return
        inbox.rest(pushed.tag, self._address.publish_timeout_ms / 1_000, lambda tag: inbox.requeue([tag]))
        task = asyncio.get_running_loop().create_task(self._round_again(inbox, pushed, arrived))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _round_again(self, inbox: Inbox, pushed: Pushed, arrived: Arrived) -> None:
        assert arrived.due_at is not None
        copy = self._routes.round_again(
            arrived.message, inbox.queue, arrived.history, due_at=arrived.due_at, now=self._clock.now()
        )
        try:
            (outcome,) = await self._send([copy])
        except RedriveError:
            return
        # Where it failed the rest ends by itself, and it comes again.
        if outcome is None and inbox.end_rest(pushed.tag):
            inbox.ack([pushed.tag])

    # ------------------------------------------------------------------------------------------- settling

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        """See `Broker.settle`. Raises where a copy could not be published: nothing of the batch has ended then."""
        if not batch:
            return []
        self._check_open()
        return await self._settler.settle(batch)

    def renew(self, batch: Sequence[Lease], *, lease_ms: Millis) -> list[bool]:
        """Whether they are still held: there is nothing to renew. Safe in any thread."""
        _ = lease_ms
        answers = []
        for lease in batch:
            inbox = self._inboxes.get(lease.queue)
            answers.append(inbox is not None and inbox.token == lease.token and lease.ref in inbox.in_hand)
        return answers

    # ------------------------------------------------------------------------------------------- looking

    async def depths(self, queues: Collection[str] = ()) -> list[Depth]:
        """The queues this process has to do with: its topology's, those it has published to or consumed from, and of
        `queues` those that exist.
        """
        self._check_open()
        depths = [await self._depth(queue) for queue in sorted({*self._declarer.seen, *queues})]
        return [depth for depth in depths if depth is not None]

    async def _depth(self, queue: str) -> Depth | None:
        found = await self._declarer.look(queue)
        if found is None:
            self._declarer.forget(queue)
            return None
        inbox, bundle, here = self._inboxes.get(queue), self._bundles.of(queue), self._bundles.round_of(queue)
        inner = 0 if bundle is None else (await self._declarer.look_at_all(bundle.inner))[0]
        ready = found[0] + inner + (0 if here is None else here.desk.count)
        return Depth(
            queue=queue,
            ready=ready + (0 if inbox is None else len(inbox.buffer)),
            scheduled=self._count_scheduled(queue) + (0 if inbox is None else len(inbox.resting)),
            leased=0 if inbox is None else len(inbox.in_hand),
        )

    def _count_scheduled(self, queue: str) -> int:
        due = self._scheduled.get(queue)
        if due is None:
            return 0
        now = self._clock.now()
        while due and due[0] <= now:
            heapq.heappop(due)
        return len(due)

    async def peek(self, queue: str, *, limit: int) -> list[Message]:
        """See `Broker.peek`. A quorum queue counts each look, which matters where it has a delivery limit."""
        self._check_open()
        buffered = self._buffered(queue)
        if len(buffered) >= limit:
            return buffered[:limit]
        link = await self._main.get(wait_ms=LOOK_WAIT_MS)
        try:
            if queue in self._bundles.queues:
                shown = await self._peek_fair(self._errands(link), queue, limit - len(buffered))
            else:
                shown = await looking.peek(self._errands(link), queue, limit - len(buffered))
        except (ChannelLost, LinkLost) as lost:
            raise self._unseen(queue, lost) from lost
        # What was pushed to us while we looked is no longer where we looked.
        buffered = self._buffered(queue)
        return (buffered + [message for message in shown if message not in buffered])[:limit]

    def _buffered(self, queue: str) -> list[Message]:
        inbox = self._inboxes.get(queue)
        return [] if inbox is None else [pushed.read().message for pushed in list(inbox.buffer)]

    async def _peek_fair(self, errands: looking.OpenChannel, queue: str, limit: int) -> list[Message]:
        """The short queue, then what the sorter holds; what lies behind that only where nobody sorts."""
        bundle, here = bundle_of(queue), self._bundles.round_of(queue)
        if here is not None:
            async with here.paused():
                first = await looking.peek(errands, bundle.next, limit)
                return (first + here.shown())[:limit]
        shown = await looking.peek(errands, bundle.next, limit)
        _, consumers = await self._declarer.look_at_all((queue, *bundle.shards))
        for name in () if consumers else (*bundle.asides, *bundle.sources):
            if len(shown) < limit:
                shown += await looking.peek(errands, name, limit - len(shown))
        return shown

    async def discard(self, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
        """See `Broker.discard`."""
        self._check_open()
        inbox = self._inboxes.get(queue)
        buffered = 0 if inbox is None else min(limit, len(inbox.buffer))
        count = 0 if inbox is None else inbox.discard(is_gone, limit)
        link = await self._main.get(wait_ms=LOOK_WAIT_MS)
        try:
            if queue in self._bundles.queues:
                return count + await self._discard_fair(self._errands(link), queue, is_gone, limit=limit - buffered)
            return count + await looking.discard(self._errands(link), queue, is_gone, limit=limit - buffered)
        except (ChannelLost, LinkLost) as lost:
            raise self._unseen(queue, lost) from lost

    async def _discard_fair(
        self, errands: looking.OpenChannel, queue: str, is_gone: Callable[[Message], bool], *, limit: int
    ) -> int:
        """Of each queue of the bundle the first messages, one queue after the other."""
        bundle, here = bundle_of(queue), self._bundles.round_of(queue)
        async with nullcontext() if here is None else here.paused():
            count = await looking.discard(errands, bundle.next, is_gone, limit=limit)
            if here is not None:
                count += here.discard(is_gone, limit - count)
            for name in (*bundle.asides, *bundle.sources):
                if count < limit:
                    count += await looking.discard(errands, name, is_gone, limit=limit - count)
        return count

    def _errands(self, link: Link) -> looking.OpenChannel:
        return partial(errand, link, clock=self._clock)

    def _unseen(self, queue: str, lost: ChannelLost | LinkLost) -> RedriveError:
        if isinstance(lost, ChannelLost):
            return refused_queue(queue, lost, doing="looked at")
        return unavailable(self._main.where, lost.text)

    async def gone(self, workers: Collection[str]) -> set[str]:
        """See `Broker.gone`: each worker holds an exclusive queue as long as its connection stands."""
        if not workers:
            return set()
        self._check_open()
        link = await self._main.get(wait_ms=LOOK_WAIT_MS)
        try:
            return await self._workers.gone(link, workers)
        except (ChannelLost, LinkLost) as lost:
            raise unavailable(self._main.where, lost.text) from lost

    # ------------------------------------------------------------------------------------------- both

    def _lost(self) -> None:
        self._declarer.forget_all()
        self._workers.forget_all()

    def _check_open(self) -> None:
        if not self._is_open:
            raise unavailable(self._main.where, "it is not open")


def _levels(copies: Sequence[Copy]) -> list[Level]:
    return list({copy.level.delay_ms: copy.level for copy in copies if copy.level is not None}.values())


def check_name(name: str) -> None:
    """Raises `InvalidMessageError` for what no queue or exchange is called."""
    size = name_bytes(name)
    if name.startswith(RESERVED) or not 0 < size <= MAX_NAME_BYTES or "\n" in name or "\r" in name:
        raise InvalidMessageError(
            f'"{cut(name, 100)}" ({size} bytes) is no name for a queue. Nothing was sent.',
            hint=f"A name has 1 to {MAX_NAME_BYTES} bytes, no line ends, and does not start with {RESERVED!r}.",
        )


def _check(outgoing: Outgoing) -> None:
    message = outgoing.message
    if not outgoing.exchange:
        check_name(outgoing.queue)
    elif max(name_bytes(outgoing.exchange), name_bytes(outgoing.queue)) > MAX_NAME_BYTES:
        raise InvalidMessageError(
            f'Message "{cut(message.id, 100)}": an exchange and a routing key have at most {MAX_NAME_BYTES} bytes. '
            "Nothing of its batch was published."
        )
    if len(message.body) > MAX_BODY_BYTES:
        raise InvalidMessageError(
            f'Message "{cut(message.id, 100)}" for "{outgoing.queue}" has {len(message.body)} bytes, the limit is '
            f"{MAX_BODY_BYTES}. Nothing of its batch was published.",
            hint="Store the body elsewhere and send a reference to it.",
        )


def _with_count(failed: list[RedriveError], size: int) -> RedriveError:
    """The first failure of a batch; where others went through, it says how many."""
    first = failed[0]
    if size == 1:
        return first
    return type(first)(f"{first.text} Of {size} messages {size - len(failed)} were confirmed.", hint=first.hint)
