"""RedisClaimStore: claims in the Redis the broker is in. Each batch is one script, and one round trip, per queue.

    {prefix}:redrive-claims:{queue}:k:KEY    one record
    {prefix}:redrive-claims:{queue}:x        keys that will expire, by when (a sorted set): what `prune` reads
    {prefix}:redrive-claims                  queues that have records (a set)

The braces are part of the name: in a cluster they keep what one script touches in one slot.

Authoritative: the record, and the server's clock for leases and expiry. Failure by failure: the answer of a claim was
lost: it is sent again under the same mark and told the same. It never came, so the claim failed: once the server is
back the claim is taken back, if it was made; else its messages would wait for a lease that nobody knows he has. Of an
end: it is sent again, and refused where the first one was carried out; the ledger then looks at the record. The server
lost its last second (`appendfsync everysec`): a key that was processed then may run once more, which is why `doctor`
asks for `always` where that matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgpack

from redrive.core.idempotency import (
    Acquired,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    Duplicate,
    InProgress,
    LostStart,
    Verdict,
)
from redrive.core.ports import ClaimEnd, Clock, Published, Registration
from redrive.core.units import Millis, UnixMs
from redrive.errors import RedriveError
from redrive.redis.address import parse
from redrive.redis.blocking import BlockingLink
from redrive.redis.link import Argument
from redrive.redis.scripts import Script, packed
from redrive.redis.server import Server

CALL_WAIT_MS: Final[Millis] = 2_000
"""How long a call waits for a connection that is being made again, or a server that is not ready."""
MAX_IN_ONE: Final = 500
"""Keys in one script, so that it stays short."""
MAX_QUEUES_KNOWN: Final = 10_000

_CODES: Final = {
    ClaimState.RECEIVED: "R",
    ClaimState.PROCESSING: "P",
    ClaimState.PROCESSED: "D",
    ClaimState.FAILED: "F",
    ClaimState.DEAD_LETTERED: "X",
}
_STATES: Final = {code: state for state, code in _CODES.items()}
_FOLDER: Final = Path(__file__).with_name("scripts")
_KNOWN, _CONFLICT = 1, 2
_DUPLICATE: Final = Duplicate()
_MIN_ACQUIRED: Final = 3


def _script(name: str) -> Script:
    texts = (_FOLDER.joinpath(f"{part}.lua").read_text("utf-8") for part in ("common", name))
    # A claim is made and ended while the server is full: what is worked off gives more room than the record takes.
    return Script(f"claims.{name}", "\n".join(texts), runs_when_full=name != "register")


class RedisClaimStore:
    """A `ClaimStore` in Redis. One event loop; `renew` from any thread."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        """Connects to nothing yet. Raises `ConfigurationError` for a URL that is none."""
        address = parse(url)
        self._clock = clock
        self._server = Server(address, clock=clock)
        self._renewing = BlockingLink(address)
        self._prefix = f"{address.prefix}:redrive-claims"
        names = ("claim", "finish", "forget", "renew", "register", "prune")
        self._scripts = {name: _script(name) for name in names}
        self._instance = secrets.token_hex(6)
        self._marks = count(1)
        self._known: set[str] = set()
        self._forgetting: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect. Raises `ConfigurationError` or `BrokerUnavailableError`; nothing is left open then."""
        await self._server.open()

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        for task in list(self._forgetting):
            task.cancel()
        await asyncio.gather(*self._forgetting, return_exceptions=True)
        self._renewing.close()
        await self._server.close()

    async def register(self, batch: Sequence[Registration]) -> list[Published]:
        """See `ClaimStore.register`."""

        async def register(queue: str, part: Sequence[Registration]) -> list[Published]:
            given = [(each.key, each.digest or "", each.expires_at or 0) for each in part]
            answers = await self._run("register", queue, packed(given))
            return [Published(duplicate=answer >= _KNOWN, conflict=answer == _CONFLICT) for answer in answers]

        return await self._by_queue(batch, lambda each: each.queue, register)

    async def claim(
        self, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str, gone: Collection[str] = ()
    ) -> list[Verdict]:
        """See `ClaimStore.claim`."""
        over = packed(sorted(gone))
        name = owner.encode("utf-8", "surrogatepass")

        async def claim(queue: str, part: Sequence[tuple[str, str]]) -> list[Verdict]:
            keys = packed([key for _, key in part])
            mark = f"{self._instance}.{next(self._marks)}"
            try:
                server_now, *answers = await self._run("claim", queue, name, lease_ms, over, keys, mark)
            except RedriveError:
                self._forget_later(queue, mark, keys, lease_ms=lease_ms)
                raise
            ahead_ms = server_now - self._clock.now()
            named = zip(part, answers, strict=True)
            return [_verdict(queue, key, answer, ahead_ms=ahead_ms) for (_, key), answer in named]

        return await self._by_queue(batch, lambda pair: pair[0], claim)

    def _forget_later(self, queue: str, mark: str, keys: bytes, *, lease_ms: Millis) -> None:
        """Until the lease has ended by itself."""

        async def forget() -> None:
            with contextlib.suppress(RedriveError):
                await self._server.run(
                    self._scripts["forget"], [self._base(queue)], [mark, keys], wait_ms=lease_ms, again=True
                )

        task = asyncio.create_task(forget())
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def finish(self, batch: Sequence[ClaimEnd]) -> list[bool]:
        """See `ClaimStore.finish`."""

        async def finish(queue: str, part: Sequence[ClaimEnd]) -> list[bool]:
            ends: list[Any] = []
            for end in part:
                ends += (end.ref.key, end.ref.token, _CODES[end.state], end.expires_at or 0)
            return [answer == 1 for answer in await self._run("finish", queue, packed(ends))]

        return await self._by_queue(batch, lambda end: end.ref.queue, finish)

    def renew(self, batch: Sequence[ClaimRef], *, lease_ms: Millis) -> list[bool]:
        """See `ClaimStore.renew`."""
        answers = [False] * len(batch)
        for queue, places in _places(batch, lambda ref: ref.queue):
            refs = packed([(batch[place].key, batch[place].token) for place in places])
            told = self._renewing.run(self._scripts["renew"], [self._base(queue)], [lease_ms, refs])
            for place, answer in zip(places, told, strict=True):
                answers[place] = answer == 1
        return answers

    async def get(self, queue: str, key: str) -> ClaimRecord | None:
        """See `ClaimStore.get`."""
        base = self._base(queue)
        name = f"{base}k:".encode() + key.encode("utf-8", "surrogatepass")
        kept = await self._server.command(base, "GET", name, wait_ms=CALL_WAIT_MS)
        return None if kept is None else _record(queue, key, kept)

    async def prune(self, *, limit: int) -> int:
        """See `ClaimStore.prune`."""
        queues = await self._server.command(self._prefix, "SMEMBERS", self._prefix, wait_ms=CALL_WAIT_MS)
        gone = 0
        for queue in queues:
            if gone < limit:
                gone += await self._run("prune", queue.decode("utf-8", "surrogatepass"), limit - gone)
        return gone

    # What is not the port's.

    def _base(self, queue: str) -> str:
        return f"{self._prefix}:{{{queue}}}:"

    async def _run(self, name: str, queue: str, *args: Argument) -> Any:
        if queue not in self._known:
            await self._make_known(queue)
        return await self._server.run(self._scripts[name], [self._base(queue)], args, wait_ms=CALL_WAIT_MS, again=True)

    async def _make_known(self, queue: str) -> None:
        """`prune`, in any process, finds the queues in a set."""
        name = queue.encode("utf-8", "surrogatepass")
        await self._server.command(self._prefix, "SADD", self._prefix, name, wait_ms=CALL_WAIT_MS)
        if len(self._known) < MAX_QUEUES_KNOWN:
            self._known.add(queue)

    async def _by_queue(self, batch: Sequence[Any], queue_of: Callable[[Any], str], step: Any) -> list[Any]:
        """The step's answers for each queue's part of the batch, in the order of the batch."""
        parts = list(_places(batch, queue_of))
        calls = [step(queue, [batch[place] for place in places]) for queue, places in parts]
        told = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        answers: list[Any] = [None] * len(batch)
        for (_, places), found in zip(parts, told, strict=True):
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers


def _places(batch: Sequence[Any], queue_of: Callable[[Any], str]) -> Iterable[tuple[str, list[int]]]:
    """Where in the batch the elements of each queue stand, in parts that are not too large."""
    by_queue: dict[str, list[int]] = defaultdict(list)
    for place, each in enumerate(batch):
        by_queue[queue_of(each)].append(place)
    for queue, places in by_queue.items():
        for start in range(0, len(places), MAX_IN_ONE):
            yield queue, places[start : start + MAX_IN_ONE]


def _verdict(queue: str, key: str, answer: Any, *, ahead_ms: Millis) -> Verdict:
    if answer == 0:
        return _DUPLICATE
    if len(answer) < _MIN_ACQUIRED:
        return InProgress(lease_until=answer[0] - ahead_ms, owner=_name(answer[1]))
    token, attempts, cycle = answer[:3]
    lost = LostStart(worker=_name(answer[3]) or "", at=answer[4]) if len(answer) > _MIN_ACQUIRED else None
    ref = ClaimRef(queue=queue, key=key, token=token)
    return Acquired(ref=ref, attempts=attempts, cycle=cycle, lost=lost)


def _name(name: bytes) -> str | None:
    return name.decode("utf-8", "surrogatepass") or None


def _record(queue: str, key: str, kept: bytes) -> ClaimRecord:
    found = msgpack.unpackb(kept, raw=False, unicode_errors="surrogatepass")
    state, attempts, cycle, token, owner, lease_until, expires_at, digest, updated_at, worker, lost_at = found[:11]
    return ClaimRecord(
        queue=queue,
        key=key,
        state=_STATES[state],
        attempts=int(attempts),
        cycle=int(cycle),
        token=int(token),
        owner=owner or None,
        lease_until=_instant(lease_until),
        expires_at=_instant(expires_at),
        digest=digest or None,
        updated_at=int(updated_at),
        lost=None if lost_at is False else LostStart(worker=worker or "", at=int(lost_at)),
    )


def _instant(value: Any) -> UnixMs | None:
    return None if value is False else int(value)
