"""BullBroker: the `Broker` port over BullMQ's queues in Redis 6.2 or newer, Valkey, and clusters of them.

Who does what: `keys` are the names, `jobs` a message as a job, `scripts` BullMQ's own Lua and ours around it, `waiting`
wakes up idle receivers, `fleet` gives signs of life and puts back what the dead had in hand; `redrive.redis` speaks to
the server.

What is authoritative: the server, and of a delivery its lock: a key with the token of one hand-over that runs out by
the server's clock. Whoever has another token changes nothing. Times that are sent are turned to the server's clock by
the script that gets them. What BullMQ's scripts write is what Node's workers, producers and dashboards expect.

Failure by failure:
- the connection is lost, the server restarts (LOADING) or fails over (READONLY, MASTERDOWN): publishes wait and are
  sent again under the same mark, so none is there twice; `receive` and `settle` raise `BrokerUnavailableError`.
- the answer to a `receive` was lost: the jobs are locked with a token nobody has heard of; the next `receive` puts them
  back first, at no cost. So it does with what could not be given back while the server was away.
- the answer to a `settle` was lost: it is sent again, by the caller too, and a job that is gone then, or locked by
  nobody, was settled.
- the server is full (OOM): publishes fail at once and say so; what is in hand can still be ended.
- a worker is killed: see `fleet`. The lock's own end is the last resort.

Durable means as durable as the server writes: with `appendfsync everysec` a crash of its machine can cost what came in
the last second, a kill of the server nothing; with `always` neither costs anything. A failover can cost what the
replica had not got yet: no option of BullMQ's scripts changes that.

Weak spots: a settle that is sent again cannot tell "done by the first try" from "the lock ended in between"; it says
done. A job is put back before all that waits, also where a delayed retry would have put it behind.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from redrive.brokers.bullmq import fleet, jobs, scripts
from redrive.brokers.bullmq.batches import MAX_SENT_BYTES, all_of, parts
from redrive.brokers.bullmq.failed import FailedSet, options_in
from redrive.brokers.bullmq.fleet import Fleet, rescue_args, rescue_keys
from redrive.brokers.bullmq.jobs import Kept, keepable
from redrive.brokers.bullmq.keys import HEADER_OPTIONS, MAX_PRIORITY, Keys, Names, job_id_of, registry
from redrive.brokers.bullmq.rates import window_of
from redrive.brokers.bullmq.retrying import retry_of
from redrive.brokers.bullmq.settling import Unsure, body_bytes, end_of, goes_back, is_forgotten
from redrive.brokers.bullmq.turns import Turns, part_of, standings
from redrive.brokers.bullmq.versions import check_version
from redrive.brokers.bullmq.waiting import PATIENCE_MS, Waiter
from redrive.core import settlement
from redrive.core.message import Message
from redrive.core.policy.fair import Fair
from redrive.core.policy.fairness import group_of
from redrive.core.policy.flow import Rate
from redrive.core.policy.standing import Standing
from redrive.core.ports import Clock, Depth, Features, Lease, Outgoing, Published, Received, Settle
from redrive.core.settlement import Reason
from redrive.core.units import Millis, UnixMs
from redrive.errors import BrokerUnavailableError, ConfigurationError, InvalidMessageError, UnsupportedError
from redrive.redis.address import Address, parse
from redrive.redis.blocking import BlockingLink
from redrive.redis.failures import LinkLost, Refusal, check, refused, unavailable
from redrive.redis.link import Argument
from redrive.redis.scripts import packed
from redrive.redis.server import Server
from redrive.redis.slots import has_tag

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Redis takes 512 MB; a body so large would hold up every other client."""

FEATURES: Final = Features(
    name="redis",
    durable=True,
    leases=True,
    priorities=True,
    exact_delays=True,
    counts_starts=True,
    atomic=False,
    transactions=False,
    max_body_bytes=MAX_BODY_BYTES,
    fair=True,
    reads_tenants=True,
    shared_rates=True,
)

MAX_TAKEN: Final = 100
"""Jobs in one hand-over: a script of Redis holds up all others, and one job costs it some 30 µs."""
LOOK_WAIT_MS: Final[Millis] = 5_000
"""How long a look at a queue waits for a connection."""
SETTLE_WAIT_MS: Final[Millis] = 2_000
RESCUE_EVERY_MS: Final[Millis] = 100
"""An idle receiver looks for leases that have ended; not more often than this."""
ABANDONED: Final = Reason(code="ABANDONED", text="whoever asked for it has gone")

_PUBLISH_PARTS: Final = (
    "wait", "paused", "meta", "id", "completed", "delayed", "active", "events", "marker", "prioritized", "pc",
)  # fmt: skip
_TAKE_PARTS: Final = (
    "wait", "active", "prioritized", "events", "stalled", "limiter", "delayed", "paused", "meta", "pc", "marker",
)  # fmt: skip
_SETTLE_PARTS: Final = (*_TAKE_PARTS, "completed", "failed")
_DATA, _FIELDS = 2, 6
"""Where a job that is to be added has its body and its fields."""


@dataclass(slots=True, kw_only=True)
class _Queue:
    """What this process knows of one queue. `unheard`: tokens of hand-overs whose answer was lost, and what it could
    not give back, as "token id".
    """

    keys: Keys
    waiter: Waiter
    unheard: list[str] = field(default_factory=list)
    unsure: Unsure = field(default_factory=Unsure)
    rescued_at_ms: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """One answer of `take.lua`, in this host's time where it is a time."""

    received: list[Received]
    event_in_ms: float | None
    is_held: bool


class BullBroker:
    """A `Broker` on BullMQ's queues. `options`: by queue, what jobs made here carry for Node's workers (attempts,
    backoff). `rates`: by queue, a rate that all workers of redrive share, counted at each start; Node's have BullMQ's
    own limiter, which holds for both. `fair`: by queue, how turns are taken between tenants, see `turns`.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        rates: Mapping[str, Rate] | None = None,
        fair: Mapping[str, Fair] | None = None,
    ) -> None:
        """Connects to nothing yet. Raises `ConfigurationError` for a URL that is none, `ModuleNotFoundError` without
        the packages.
        """
        self._address: Address = parse(url)
        self._clock = clock
        self._options = dict(options or {})
        self._rates = dict(rates or {})
        self._turns = Turns(fair)
        self._scripts = scripts.load()
        self._server = Server(self._address, clock=clock)
        self._renewing = BlockingLink(self._address)
        self._instance = secrets.token_hex(6)
        self._fleet = Fleet(BlockingLink(self._address), self._scripts, instance=self._instance, clock=clock)
        self._names = Names(self._address.prefix)
        self._queues: dict[str, _Queue] = {}
        self._tokens = count(1)
        self._marks = count(1)
        # Queues whose names other processes can know.
        self._known: set[str] = set()
        self._is_open = False
        self.failed = FailedSet(self._server, self._scripts, keys_of=lambda queue: self._queue(queue).keys)

    @property
    def features(self) -> Features:
        """What this broker can do."""
        return FEATURES

    async def open(self) -> None:
        """Connect. Raises `ConfigurationError` (wrong credentials; a cluster, and keys without a hash tag),
        `UnsupportedError` or `BrokerUnavailableError`; nothing is left open then.
        """
        self._turns.check()
        await self._server.open()
        try:
            check_version(self._server.info.get("redis_version", ""), self._server.where)
            for queue in self._options:
                self._check_slots(self._names.keys(queue))
        except ConfigurationError:
            await self._server.close()
            raise
        self._is_open = True

    async def close(self) -> None:
        """Disconnect; whoever waits returns empty-handed. May be called twice."""
        self._is_open = False
        for queue in self._queues.values():
            await queue.waiter.close()
        self._queues.clear()
        await asyncio.to_thread(self._fleet.close)
        self._renewing.close()
        await self._server.close()

    # ------------------------------------------------------------------------------------------- publishing

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        """See `Broker.publish`; one round trip per queue. A queue that is not there is made.

        Raises `InvalidMessageError` where a body or a priority is over a limit, `UnsupportedError` where an exchange
        is named (nothing was sent then), `BrokerUnavailableError` where an answer did not come.
        """
        if not batch:
            return []
        self._check_open()
        by_queue: dict[str, list[Any]] = defaultdict(list)
        mark = f"{self._instance}.{next(self._marks)}"
        for number, outgoing in enumerate(batch):
            _check(outgoing)
            by_queue[outgoing.queue].append(self._job(outgoing, f"{mark}.{number}"))
        sent = [(self._queue(queue), part) for queue, found in by_queue.items() for part in parts(found, _job_bytes)]
        await self._registered(by_queue)
        await all_of([self._publish_part(queue.keys, part) for queue, part in sent])
        return [Published()] * len(batch)

    def _job(self, outgoing: Outgoing, mark: str) -> list[Any]:
        message = outgoing.message
        job_id = job_id_of(message)
        kind, data = jobs.stored_body(message.body)
        given = options_in(message)
        options = {"attempts": 0, **(self._own_options(outgoing.queue) if given is None else given)}
        priority = message.priority or 0
        if priority:
            options["priority"] = priority
        name = message.properties.type or outgoing.queue
        due_at = outgoing.due_at or 0
        group, fields = group_of(message.tenant), jobs.fields_of(message, job_id, kind)
        return [job_id, keepable(name), data, options, due_at, priority, fields, mark, group]

    def _own_options(self, queue: str) -> dict[str, Any]:
        options = dict(self._options.get(queue, {}))
        if not self._address.keep_completed:
            options["removeOnComplete"] = True
        if not self._address.keep_failed:
            options["removeOnFail"] = True
        return options

    async def _publish_part(self, keys: Keys, part: Sequence[Any]) -> None:
        args: list[Argument] = [keys.base, packed(part), self._clock.now(), self._turns.told(keys.queue)]
        answers = await self._server.run(
            self._scripts.publish,
            keys.several(*_PUBLISH_PARTS),
            args,
            wait_ms=self._address.publish_timeout_ms,
            again=True,
        )
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed:
            fate = f'{len(failed)} of {len(part)} messages were not accepted by queue "{keys.queue}".'
            raise refused(self._server.where, Refusal(str(failed[0])), fate=fate)

    async def _registered(self, queues: Collection[str]) -> None:
        """The names of the queues are known to other processes, before anything is in them."""
        new = [queue for queue in queues if queue not in self._known]
        if new:
            key = registry(self._address.prefix)
            wait_ms = self._address.publish_timeout_ms
            await self._server.command(key, "SADD", key, *map(_bytes, new), wait_ms=wait_ms)
            self._known.update(new)

    # ------------------------------------------------------------------------------------------- receiving

    async def receive(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis
    ) -> list[Received]:
        """See `Broker.receive`."""
        self._check_open()
        if limit <= 0:
            return []
        source = self._queue(queue)
        if not self._fleet.knows(source.keys, worker):
            await asyncio.to_thread(self._fleet.be_here, source.keys, worker)
        give_up_at = self._clock.monotonic_ms() + wait_ms
        has_looked_again = False
        while True:
            taken = await self._take(source, min(limit, MAX_TAKEN), lease_ms=lease_ms, worker=worker)
            if taken.received:
                return taken.received
            found = await self._rescue_if_due(source)
            left_ms = give_up_at - self._clock.monotonic_ms()
            if found or (found == 0 and left_ms <= 0 and not has_looked_again):
                # Where none were found the fleet may have put them back since the take.
                has_looked_again = left_ms <= 0
                continue
            if left_ms <= 0:
                return []
            pause_ms = min(left_ms, PATIENCE_MS)
            await source.waiter.wait(pause_ms if taken.event_in_ms is None else min(pause_ms, taken.event_in_ms))
            if self._is_closed():
                return []

    async def _take(self, source: _Queue, limit: int, *, lease_ms: Millis, worker: str) -> _Taken:
        """Whoever is cancelled in here gives back what it was given."""
        taking = asyncio.ensure_future(self._take_now(source, limit, lease_ms=lease_ms, worker=worker))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(taking))
            raise

    async def _give_back(self, taking: asyncio.Future[_Taken]) -> None:
        try:
            taken = await taking
            end = settlement.Requeue(due_at=self._clock.now(), reason=ABANDONED)
            await self.settle([Settle(lease=each.lease, settlement=end) for each in taken.received])
        except BrokerUnavailableError:
            # They come back when their locks end.
            return

    async def _take_now(self, source: _Queue, limit: int, *, lease_ms: Millis, worker: str) -> _Taken:
        keys = source.keys
        if source.unheard:
            await self._rescue(source)
        number = next(self._tokens)
        token = self._token(number)
        options = packed({"token": token, "lockDuration": lease_ms, "name": f"redrive:{worker}"})
        window = window_of(self._rates.get(keys.queue))
        told = self._turns.told(keys.queue)
        asked_at = self._clock.now()
        try:
            answer = await self._server.run(
                self._scripts.take_fair if told else self._scripts.take,
                [*keys.several(*_TAKE_PARTS), keys.rate],
                [keys.base, limit, options, MAX_SENT_BYTES, *window, told],
                wait_ms=0,
                again=False,
            )
        except LinkLost as lost:
            source.unheard.append(token)
            raise unavailable(self._server.where, lost.text) from lost
        received = [_received(keys.queue, item, number=number, until=asked_at + lease_ms) for item in answer[4:]]
        return _Taken(received=received, event_in_ms=_event_in(answer), is_held=bool(answer[3]))

    async def _rescue_if_due(self, source: _Queue) -> int | None:
        """How many leases have ended, so that their jobs can be taken now; None where it is too early for a look."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - source.rescued_at_ms < RESCUE_EVERY_MS:
            return None
        source.rescued_at_ms = now_ms
        return await self._rescue(source)

    async def _rescue(self, source: _Queue) -> int:
        unheard = list(source.unheard)
        args = rescue_args(source.keys, packed(unheard))
        found: int = await self._server.run(self._scripts.rescue, rescue_keys(source.keys), args, wait_ms=0, again=True)
        source.unheard = [token for token in source.unheard if token not in unheard]
        return found

    def _token(self, number: int) -> str:
        return f"redrive:{self._instance}:{number}"

    # ------------------------------------------------------------------------------------------- settling

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        """See `Broker.settle`; one round trip per queue. Raises where an answer did not come: repeating is safe."""
        if not batch:
            return []
        self._check_open()
        by_queue: dict[str, list[int]] = defaultdict(list)
        for number, each in enumerate(batch):
            by_queue[each.lease.queue].append(number)
        answers = [False] * len(batch)
        await all_of(
            [
                self._settle_part(self._queue(queue), batch, part, answers=answers)
                for queue, numbers in by_queue.items()
                for part in parts(numbers, lambda number: body_bytes(batch[number]))
            ]
        )
        return answers

    async def _settle_part(
        self, queue: _Queue, batch: Sequence[Settle], numbers: Sequence[int], *, answers: list[bool]
    ) -> None:
        now = self._clock.now()
        back = [number for number in numbers if goes_back(batch[number], now)]
        # What is put before all others, the last of it first: so it keeps its order.
        numbers = [*(number for number in numbers if number not in back), *reversed(back)] if back else numbers
        ends = packed([end_of(batch[number], self._token(batch[number].lease.token), now=now) for number in numbers])
        leases = [batch[number].lease for number in numbers]
        try:
            told = await self._ended(queue, ends, leases)
        except BrokerUnavailableError:
            # What nobody will ask for again would wait for its lock to end.
            forgotten = [batch[number].lease for number in numbers if is_forgotten(batch[number])]
            queue.unheard += [f"{self._token(lease.token)} {lease.ref.id}" for lease in forgotten]
            raise
        for number, lease, answer in zip(numbers, leases, told, strict=True):
            if isinstance(answer, Exception):
                raise refused(self._server.where, Refusal(str(answer)), fate="It is still in hand.")
            answers[number] = queue.unsure.is_done(lease, answer)
        queue.unsure.forget(leases)
        queue.waiter.wake()

    async def _ended(self, queue: _Queue, ends: bytes, leases: Sequence[Lease]) -> list[Any]:
        """The answers of `settle.lua`; it is sent until there are some."""
        keys = queue.keys
        names = keys.several(*_SETTLE_PARTS)
        told: list[Any] | None = None
        until = self._clock.monotonic_ms() + SETTLE_WAIT_MS
        while told is None:
            args: list[Argument] = [keys.base, ends, self._clock.now(), *self._turns.told_of_ends(keys.queue)]
            wait_ms = max(0.0, until - self._clock.monotonic_ms())
            try:
                told = await self._server.run(self._scripts.settle, names, args, wait_ms=wait_ms, again=False)
            except LinkLost as lost:
                queue.unsure.add(leases)
                if self._clock.monotonic_ms() >= until:
                    raise unavailable(self._server.where, lost.text, fate="What was in hand is still there.") from lost
        return told

    def renew(self, batch: Sequence[Lease], *, lease_ms: Millis) -> list[bool]:
        """See `Broker.renew`; BullMQ's extendLocks, one call per queue, on a connection for threads."""
        by_queue: dict[str, list[int]] = defaultdict(list)
        for number, lease in enumerate(batch):
            by_queue[lease.queue].append(number)
        answers = [True] * len(batch)
        for queue, numbers in by_queue.items():
            keys = self._names.keys(queue)
            tokens = packed([self._token(batch[number].token) for number in numbers])
            ids = packed([batch[number].ref.id for number in numbers])
            failed = self._renewing.run(self._scripts.extend, [keys["stalled"]], [keys.base, tokens, ids, lease_ms])
            lost = {name.decode() for name in failed}
            for number in numbers:
                answers[number] = batch[number].ref.id not in lost
        return answers

    # ------------------------------------------------------------------------------------------- looking

    async def depths(self, queues: Collection[str] = ()) -> list[Depth]:
        """The queues redrive has had to do with, in any process, and of `queues` those that exist."""
        self._check_open()
        key = registry(self._address.prefix)
        registered = await self._server.command(key, "SMEMBERS", key, wait_ms=LOOK_WAIT_MS)
        names = sorted({*(_name(each) for each in registered), *queues})
        found = [await self._depth(name) for name in names]
        return [depth for depth in found if depth is not None]

    async def _depth(self, queue: str) -> Depth | None:
        keys = self._names.keys(queue)
        parts = keys.several("wait", "active", "prioritized", "delayed", "paused", "meta")
        is_there, ready, scheduled, leased, oldest = await self._look(self._scripts.depth, parts, [keys.base])
        if not is_there:
            return None
        return Depth(
            queue=queue,
            ready=ready,
            scheduled=scheduled,
            leased=leased,
            oldest_ready_at=oldest or None if ready else None,
        )

    async def peek(self, queue: str, *, limit: int) -> list[Message]:
        """See `Broker.peek`."""
        self._check_open()
        return [message for _, message in await self._waiting(queue, limit)]

    async def _waiting(self, queue: str, limit: int) -> list[tuple[str, Message]]:
        keys = self._names.keys(queue)
        parts = keys.several("wait", "active", "prioritized", "delayed", "paused")
        shown = await self._look(self._scripts.peek, parts, [keys.base, limit])
        found = [(name.decode("utf-8", "surrogateescape"), _pairs(fields)) for name, fields in shown]
        return [(name, jobs.message_of(name, job)) for name, job in found if job]

    async def standings(self, queue: str, *, limit: int) -> list[Standing]:
        """Of a fair queue: who waits and who was served, the longest backlog first."""
        self._check_open()
        keys = self._names.keys(queue)
        return await standings(lambda *part: self._look(self._scripts.standings, *part_of(keys, *part)), limit=limit)

    async def discard(self, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
        """See `Broker.discard`."""
        self._check_open()
        gone = [name for name, message in await self._waiting(queue, limit) if is_gone(message)]
        if not gone:
            return 0
        keys = self._names.keys(queue)
        removed: int = await self._look(self._scripts.discard, [keys["repeat"]], [keys.base, packed(gone)])
        return removed

    async def _look(self, script: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return await self._server.run(script, keys, args, wait_ms=LOOK_WAIT_MS, again=True)

    async def gone(self, workers: Collection[str]) -> set[str]:
        """Those whose work `fleet` has put back in a queue this process has to do with: they were found missing there
        for long enough, and give no sign of life in any. A queue in which they had nothing in hand says neither.
        """
        asked = set(workers)
        found: dict[fleet.Sign, set[str]] = {sign: set() for sign in fleet.Sign}
        for queue in list(self._queues.values()) if asked else ():
            keys = queue.keys
            link = await self._server.link(keys.workers, wait_ms=LOOK_WAIT_MS)
            looks = [("TIME",), ("ZRANGE", keys.workers, 0, -1, "WITHSCORES"), ("HGETALL", keys.suspects)]
            try:
                time, signs, suspects = [check(reply) for reply in await link.send(looks)]
            except LinkLost as lost:
                raise unavailable(self._server.where, lost.text) from lost
            except Refusal as refusal:
                raise refused(self._server.where, refusal) from refusal
            for worker, sign in fleet.seen(time, signs, suspects):
                found[sign].add(worker)
        return (asked & found[fleet.Sign.DEAD]) - found[fleet.Sign.ALIVE]

    # ------------------------------------------------------------------------------------------- helpers

    def _queue(self, queue: str) -> _Queue:
        found = self._queues.get(queue)
        if found is None:
            keys = self._names.keys(queue)
            self._check_slots(keys)
            found = self._queues[queue] = _Queue(keys=keys, waiter=Waiter(self._server, keys))
        return found

    def _check_slots(self, keys: Keys) -> None:
        if self._server.is_cluster and not has_tag(keys.base):
            raise ConfigurationError(
                f'Queue "{keys.queue}": this Redis is a cluster, and the keys of a BullMQ queue must lie in one slot. '
                "Nothing was changed.",
                hint=f"Give them a hash tag: ?prefix={{{self._address.prefix}}} in the URL.",
            )

    def _is_closed(self) -> bool:
        return not self._is_open

    def _check_open(self) -> None:
        if not self._is_open:
            raise BrokerUnavailableError(
                "The Redis broker is not open. Nothing was accepted by this call.", hint="Open it first."
            )


def _check(outgoing: Outgoing) -> None:
    message = outgoing.message
    if outgoing.exchange:
        raise UnsupportedError(
            f'Redis has no exchange "{outgoing.exchange}". Nothing was published.',
            hint="Publish to the queue itself.",
        )
    size = len(message.body)
    if size > MAX_BODY_BYTES:
        raise InvalidMessageError(
            f'Message "{message.id:.120}" for queue "{outgoing.queue}" has {size} bytes, the limit is '
            f"{MAX_BODY_BYTES}. Nothing of its batch was published.",
            hint="Store the body elsewhere and send a reference to it.",
        )
    if not 0 <= (message.priority or 0) <= MAX_PRIORITY:
        raise InvalidMessageError(
            f'Message "{message.id:.120}" for queue "{outgoing.queue}" has priority {message.priority}; BullMQ takes '
            f"0 to {MAX_PRIORITY}. Nothing of its batch was published."
        )


def _received(queue: str, item: Sequence[Any], *, number: int, until: UnixMs) -> Received:
    name = item[0].decode("utf-8", "surrogateescape")
    job = _pairs(item[1])
    options = job.get(b"opts", b"{}")
    starts, history = jobs.starts_of(job), jobs.history_of(job)
    message = jobs.message_of(name, job)
    return Received(
        message=message,
        lease=Lease(queue=queue, ref=Kept(name, options), token=number),
        lease_until=until,
        starts=starts,
        position=name,
        redelivered=b"stc" in job,
        history=history,
        # Every start of redrive's that failed or was lost left an entry.
        others=max(0, starts - 1 - len(history)),
        # What redrive made carries its publisher's idea of it, for Node's workers.
        retry=None if b"rd" in job and HEADER_OPTIONS not in message.headers else retry_of(options),
    )


def _pairs(fields: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(fields[::2], fields[1::2], strict=True))


def _event_in(answer: Sequence[Any]) -> float | None:
    """In how many ms something changes by itself: a rate limit ends, a job falls due."""
    now, limited_ms, due = answer[0], answer[1], answer[2]
    if limited_ms > 0:
        return float(limited_ms)
    return float(max(0, due - now)) if due else None


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _name(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def _job_bytes(job: Sequence[Any]) -> int:
    return len(job[_DATA]) + sum(map(len, job[_FIELDS]))
