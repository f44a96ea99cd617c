"""Faults to inject: wrappers around the real broker and stores that fail before a call, after it, or die there.

The thing underneath is real, so what a fault leaves behind is what it would leave in production:

- *fail*: the call raises `BrokerUnavailableError` and nothing happened;
- *lose*: it happened, and the answer is lost: the caller sees the same error and cannot tell (a lost confirm);
- *kill*: the process ends before the call: `Killed`, which is no `Exception`, so that nothing tidies up after it.

Random faults are drawn from a seed; the same seed and the same calls give the same faults.

    faults = Faults(seed=7)
    broker = FaultyBroker(MemoryBroker(clock), faults=faults, lose_confirm=0.1)
    faults.fail_next("letters.put", times=2)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NoReturn, TypeVar

from redrive.core.idempotency import ClaimRecord, ClaimRef, Verdict
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.message import Message
from redrive.core.ports import (
    AuditEntry,
    Broker,
    ClaimEnd,
    ClaimStore,
    Depth,
    Features,
    JobStore,
    Lease,
    LetterStats,
    LetterStore,
    Outgoing,
    Page,
    Published,
    Received,
    Registration,
    ReviewChange,
    Settle,
)
from redrive.core.redrive import Item, Job
from redrive.core.units import Millis, UnixMs
from redrive.errors import BrokerUnavailableError

T = TypeVar("T")


class Killed(BaseException):
    """The process would have ended here. Raised out of everything, as `kill -9` would; nothing settles after it."""


class Faults:
    """What goes wrong, shared by any number of wrappers. Calls are named `broker.publish`, `claims.finish`, ….

    `calls` is every call made, in order: a test that wants to die at each of them counts them in a first run.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.calls: list[str] = []
        self._random = random.Random(seed)
        self._fail_rate: dict[str, float] = {}
        self._lose_rate: dict[str, float] = {}
        self._fail_next: Counter[str] = Counter()
        self._lose_next: Counter[str] = Counter()
        self._fail_at: set[int] = set()
        self._lose_at: set[int] = set()
        self._kill_at: int | None = None

    def at_random(self, name: str, *, fail: float = 0.0, lose: float = 0.0) -> None:
        """Of the calls of this name let this share fail before, and this share after, it happened."""
        self._fail_rate[name] = fail
        self._lose_rate[name] = lose

    def fail_next(self, name: str, *, times: int = 1) -> None:
        """Let the next calls of this name fail; nothing happens."""
        self._fail_next[name] = times

    def lose_next(self, name: str, *, times: int = 1) -> None:
        """Let the next calls of this name happen and then raise all the same."""
        self._lose_next[name] = times

    def fail_at(self, call: int) -> None:
        """Let the `call`-th call from now on (0: the next) fail, whatever it is."""
        self._fail_at.add(len(self.calls) + call)

    def lose_at(self, call: int) -> None:
        """Let the `call`-th call from now on (0: the next) happen and then raise all the same."""
        self._lose_at.add(len(self.calls) + call)

    def kill_before(self, call: int) -> None:
        """Die instead of making the `call`-th call from now on (0: the next), and at every call after it."""
        self._kill_at = len(self.calls) + call

    def stop(self) -> None:
        """No more faults."""
        self._fail_rate.clear()
        self._lose_rate.clear()
        self._fail_next.clear()
        self._lose_next.clear()
        self._fail_at.clear()
        self._lose_at.clear()
        self._kill_at = None

    async def around(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make the call, with what is to go wrong with it."""
        number = self._before(name)
        answer = await call()
        self._after(name, number)
        return answer

    def around_blocking(self, name: str, call: Callable[[], T]) -> T:
        """As `around`, for a plain function."""
        number = self._before(name)
        answer = call()
        self._after(name, number)
        return answer

    def _before(self, name: str) -> int:
        number = len(self.calls)
        if self._kill_at is not None and number >= self._kill_at:
            raise Killed(name)
        self.calls.append(name)
        if number in self._fail_at or self._is_drawn(self._fail_next, self._fail_rate, name):
            _unavailable(name, "Nothing happened.")
        return number

    def _after(self, name: str, number: int) -> None:
        if number in self._lose_at or self._is_drawn(self._lose_next, self._lose_rate, name):
            _unavailable(name, "Whether it happened is not known.")

    def _is_drawn(self, asked: Counter[str], rates: dict[str, float], name: str) -> bool:
        if asked[name] > 0:
            asked[name] -= 1
            return True
        return name in rates and self._random.random() < rates[name]


def _unavailable(name: str, what: str) -> NoReturn:
    raise BrokerUnavailableError(f"Injected fault in {name}. {what}", hint="Repeat the call.")


class FaultyBroker:
    """A broker with faults. `fail_publish` and `lose_confirm` are shares of publishes; more by `faults`."""

    def __init__(
        self,
        broker: Broker,
        *,
        faults: Faults | None = None,
        fail_publish: float = 0.0,
        lose_confirm: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._broker = broker
        self.faults = Faults(seed=seed) if faults is None else faults
        if fail_publish or lose_confirm:
            self.faults.at_random("broker.publish", fail=fail_publish, lose=lose_confirm)
        self._refuses: Callable[[Outgoing], bool] = lambda _: False

    def refuse(self, is_refused: Callable[[Outgoing], bool]) -> None:
        """From now on refuse every publish that holds such a message, as a broker that cannot route it does."""
        self._refuses = is_refused

    @property
    def features(self) -> Features:
        return self._broker.features

    async def open(self) -> None:
        await self._broker.open()

    async def close(self) -> None:
        await self._broker.close()

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        if any(self._refuses(outgoing) for outgoing in batch):
            _unavailable("broker.publish", "The broker refused a message; nothing of its batch was accepted.")
        return await self.faults.around("broker.publish", lambda: self._broker.publish(batch))

    async def receive(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis
    ) -> list[Received]:
        return await self.faults.around(
            "broker.receive",
            lambda: self._broker.receive(queue, limit=limit, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms),
        )

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        return await self.faults.around("broker.settle", lambda: self._broker.settle(batch))

    def renew(self, batch: Sequence[Lease], *, lease_ms: Millis) -> list[bool]:
        return self.faults.around_blocking("broker.renew", lambda: self._broker.renew(batch, lease_ms=lease_ms))

    async def depths(self, queues: Collection[str] = ()) -> list[Depth]:
        return await self.faults.around("broker.depths", lambda: self._broker.depths(queues))

    async def peek(self, queue: str, *, limit: int) -> list[Message]:
        return await self.faults.around("broker.peek", lambda: self._broker.peek(queue, limit=limit))

    async def discard(self, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
        return await self.faults.around("broker.discard", lambda: self._broker.discard(queue, is_gone, limit=limit))

    async def gone(self, workers: Collection[str]) -> set[str]:
        return await self.faults.around("broker.gone", lambda: self._broker.gone(workers))


class FaultyClaimStore:
    """A claim store with faults."""

    def __init__(self, claims: ClaimStore, *, faults: Faults) -> None:
        self._claims = claims
        self.faults = faults

    async def open(self) -> None:
        await self._claims.open()

    async def close(self) -> None:
        await self._claims.close()

    async def register(self, batch: Sequence[Registration]) -> list[Published]:
        return await self.faults.around("claims.register", lambda: self._claims.register(batch))

    async def claim(
        self, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str, gone: Collection[str] = ()
    ) -> list[Verdict]:
        return await self.faults.around(
            "claims.claim", lambda: self._claims.claim(batch, lease_ms=lease_ms, owner=owner, gone=gone)
        )

    async def finish(self, batch: Sequence[ClaimEnd]) -> list[bool]:
        return await self.faults.around("claims.finish", lambda: self._claims.finish(batch))

    def renew(self, batch: Sequence[ClaimRef], *, lease_ms: Millis) -> list[bool]:
        return self.faults.around_blocking("claims.renew", lambda: self._claims.renew(batch, lease_ms=lease_ms))

    async def get(self, queue: str, key: str) -> ClaimRecord | None:
        return await self.faults.around("claims.get", lambda: self._claims.get(queue, key))

    async def prune(self, *, limit: int) -> int:
        return await self.faults.around("claims.prune", lambda: self._claims.prune(limit=limit))


class FaultyLetterStore:
    """A letter store with faults."""

    def __init__(self, letters: LetterStore, *, faults: Faults) -> None:
        self._letters = letters
        self.faults = faults

    async def open(self) -> None:
        await self._letters.open()

    async def close(self) -> None:
        await self._letters.close()

    async def put(self, batch: Sequence[Letter]) -> None:
        await self.faults.around("letters.put", lambda: self._letters.put(batch))

    async def get(self, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None:
        return await self.faults.around("letters.get", lambda: self._letters.get(letter_id))

    async def find(self, selection: Selection, *, limit: int, cursor: str | None = None) -> Page:
        return await self.faults.around(
            "letters.find", lambda: self._letters.find(selection, limit=limit, cursor=cursor)
        )

    async def stats(
        self, selection: Selection, *, top: int = 20, ages_at: UnixMs | None = None, up_to: int | None = None
    ) -> LetterStats:
        return await self.faults.around(
            "letters.stats", lambda: self._letters.stats(selection, top=top, ages_at=ages_at, up_to=up_to)
        )

    async def review(self, batch: Sequence[ReviewChange]) -> list[str | None]:
        return await self.faults.around("letters.review", lambda: self._letters.review(batch))

    async def earlier(self, letter_ids: Sequence[str], *, job_id: str | None) -> dict[str, str]:
        return await self.faults.around("letters.earlier", lambda: self._letters.earlier(letter_ids, job_id=job_id))

    async def prune(self, *, now: UnixMs, limit: int, selection: Selection | None = None) -> int:
        return await self.faults.around(
            "letters.prune", lambda: self._letters.prune(now=now, limit=limit, selection=selection)
        )


class FaultyJobStore:
    """A job store with faults."""

    def __init__(self, jobs: JobStore, *, faults: Faults) -> None:
        self._jobs = jobs
        self.faults = faults

    async def create(self, job: Job) -> Job:
        return await self.faults.around("jobs.create", lambda: self._jobs.create(job))

    async def get(self, job_id: str) -> Job | None:
        return await self.faults.around("jobs.get", lambda: self._jobs.get(job_id))

    async def acquire(self, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
        return await self.faults.around(
            "jobs.acquire", lambda: self._jobs.acquire(job_id, owner=owner, lease_ms=lease_ms)
        )

    async def stage(self, job: Job, *, limit: int) -> Job:
        return await self.faults.around("jobs.stage", lambda: self._jobs.stage(job, limit=limit))

    async def items(self, job_id: str, *, state: str | None, limit: int, after: int = -1) -> list[Item]:
        return await self.faults.around(
            "jobs.items", lambda: self._jobs.items(job_id, state=state, limit=limit, after=after)
        )

    async def record(self, job: Job, batch: Sequence[Item]) -> bool:
        return await self.faults.around("jobs.record", lambda: self._jobs.record(job, batch))

    async def save(self, job: Job, *, lease_ms: Millis) -> bool:
        return await self.faults.around("jobs.save", lambda: self._jobs.save(job, lease_ms=lease_ms))

    # Last: in the class body its name would hide the type in the annotations above.
    async def list(self, *, limit: int = 50) -> list[Job]:
        return await self.faults.around("jobs.list", lambda: self._jobs.list(limit=limit))
