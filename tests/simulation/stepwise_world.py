"""A small world for the stepwise ledger: faults around real in-memory parts, and a worker that may die anywhere.

The worker is the plainest one that keeps the promises: take, run, decide, commit, again and again. What it does to
messages is by their name: `ok…` succeeds, `flaky…` fails once, `poison…` always fails, `busy…` is handed back once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from redrive.brokers.memory import MemoryBroker
from redrive.core import settlement
from redrive.core.idempotency import Acquired, Duplicate, InProgress
from redrive.core.letters.letter import Attempt, Letter, ReviewState, letter_id
from redrive.core.letters.redriven import redriven_message
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.message import HEADER_LETTER
from redrive.core.ports import End, Forward, Outgoing, Taken
from redrive.core.redrive import Item, ItemState, Job, JobState
from redrive.core.settlement import Reason, Settlement
from redrive.core.units import UnixMs
from redrive.errors import BrokerUnavailableError
from redrive.runtime.ledger import OrderedLedger
from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
from redrive.testing import FakeClock, Faults, FaultyBroker, FaultyClaimStore, FaultyJobStore, FaultyLetterStore
from redrive.testing.samples import QUEUE, attempt, job, letter
from tests.runtime.connected import ConnectedBroker

DEAD = f"{QUEUE}.dead"
LEASE_MS = 10_000
MAX_ATTEMPTS = 4
MAX_ROUNDS = 400
WHY = Reason(code="TEST", text="the world is like this")
LOST = Reason(code="WORKER_LOST", text="the worker died too often")


class World:
    """Everything that outlives a worker, and what the handler's effects came to."""

    def __init__(self, *, seed: int = 0, connected: bool = False) -> None:
        """`connected`: the broker has the manners of RabbitMQ instead of leases and counts."""
        self.clock = FakeClock()
        self.faults = Faults(seed=seed)
        self.broker: MemoryBroker | ConnectedBroker
        self.broker = ConnectedBroker(self.clock) if connected else MemoryBroker(self.clock)
        self.processes = 0
        self.claims = MemoryClaimStore(self.clock)
        self.letters = MemoryLetterStore()
        self.jobs = MemoryJobStore(self.letters, self.clock)
        self.faulty_broker = FaultyBroker(self.broker, faults=self.faults)
        self.effects: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.in_hand: set[str] = set()
        self.heals = False
        """From now on `poison…` succeeds too: somebody fixed the cause."""

    async def process(self) -> OrderedLedger:
        """What a new process starts with: nothing but the things that outlive the old one."""
        if isinstance(self.broker, ConnectedBroker) and self.processes:
            await self.broker.lose(self.worker, stays_away=True)
        self.processes += 1
        ledger = OrderedLedger(
            broker=self.faulty_broker,
            claims=FaultyClaimStore(self.claims, faults=self.faults),
            letters=FaultyLetterStore(self.letters, faults=self.faults),
            jobs=FaultyJobStore(self.jobs, faults=self.faults),
            clock=self.clock,
        )
        await ledger.open()
        return ledger

    @property
    def worker(self) -> str:
        """The name of this process's worker."""
        return f"w{self.processes}"

    async def work(self) -> None:
        """Work until nothing waits. Errors are met with a pause and another try, as the pipeline does."""
        ledger = await self.process()
        for _ in range(MAX_ROUNDS):
            try:
                taken = await ledger.take(
                    QUEUE, limit=10, lease_ms=LEASE_MS, worker=self.worker, wait_ms=0, claims=True
                )
            except BrokerUnavailableError:
                await self.clock.advance(100)
                continue
            if not taken and await self.is_quiet():
                return
            if not taken:
                await self.clock.advance(1_000)
                continue
            self.in_hand = {found.received.message.id for found in taken}
            await self._commit(ledger, [self._end(found) for found in taken])
            self.in_hand = set()
        raise AssertionError(f"still not quiet after {MAX_ROUNDS} rounds")

    async def _commit(self, ledger: OrderedLedger, ends: list[End]) -> None:
        for _ in range(MAX_ROUNDS):
            try:
                await ledger.commit(ends)
            except BrokerUnavailableError:
                await self.clock.advance(100)
            else:
                return
        raise AssertionError("the commit never succeeded")

    def _end(self, taken: Taken) -> End:
        end, entry = self._outcome(taken)
        dead = _letter(taken, end.reason, self.clock.now()) if isinstance(end, settlement.DeadLetter) else None
        source = taken.received.message.headers.get(HEADER_LETTER)
        closes = source if isinstance(end, settlement.Ack) and isinstance(source, str) else None
        return End(taken=taken, settlement=end, entry=entry, letter=dead, closes_letter=closes)

    def _outcome(self, taken: Taken) -> tuple[Settlement, Attempt | None]:
        name, now = taken.received.message.id, self.clock.now()
        match taken.verdict:
            case Duplicate():
                return settlement.ACK, None
            case InProgress(lease_until=until):
                # A dead worker is known to be dead long before its lease ends.
                is_connected = isinstance(self.broker, ConnectedBroker)
                return settlement.Requeue(due_at=now + 1_000 if is_connected else until, reason=WHY), None
            case Acquired(attempts=number):
                return self._run(name, number, now)
            case None:
                return self._run(name, taken.received.starts or 1, now)

    def _run(self, name: str, number: int, now: UnixMs) -> tuple[Settlement, Attempt | None]:
        if number > MAX_ATTEMPTS:
            return settlement.DeadLetter(reason=LOST), None
        self.runs[name] += 1
        if name.startswith("busy") and self.runs[name] == 1:
            return settlement.Requeue(due_at=now, reason=WHY), None
        if name.startswith("poison") and not self.heals and number >= 2:
            return settlement.DeadLetter(reason=WHY), None
        if (name.startswith("poison") and not self.heals) or (name.startswith("flaky") and self.runs[name] == 1):
            return settlement.Retry(due_at=now + 500, reason=WHY), attempt(number)
        self.effects[name] += 1
        return settlement.ACK, None

    async def redrive(self, name: str = "job-1") -> Job:
        """Carry out this job (made where it is new) from wherever it stands, to its end."""
        ledger = await self.process()
        jobs = FaultyJobStore(self.jobs, faults=self.faults)
        await jobs.create(job(name, selection=Selection(queue=QUEUE, states=OPEN_STATES), created_at=self.clock.now()))
        running = await jobs.acquire(name, owner="r", lease_ms=LEASE_MS)
        assert running is not None
        while True:
            items = await jobs.items(name, state=ItemState.PENDING, limit=4)
            if not items and running.is_staged:
                break
            if not items:
                running = await jobs.stage(running, limit=6)
                continue
            await ledger.forward(running, [await self._forward(running, item) for item in items])
        await jobs.save(replace(running, state=JobState.DONE), lease_ms=0)
        return running

    async def _forward(self, running: Job, item: Item) -> Forward:
        found = await self.letters.get(item.letter_id)
        assert found is not None
        copy = redriven_message(found[0], running, now=self.clock.now())
        return Forward(
            item=item, outgoing=Outgoing(queue=found[0].queue, message=copy), actor="ann", at=self.clock.now()
        )

    async def is_quiet(self) -> bool:
        """Whether nothing waits in the work queue."""
        return await self.waiting() == 0

    async def waiting(self, queue: str = QUEUE) -> int:
        """Messages in a queue, in hand or not."""
        return sum(
            found.ready + found.scheduled + found.leased for found in await self.broker.depths() if found.queue == queue
        )

    async def dead(self) -> list[Letter]:
        """All letters, oldest first."""
        return [kept.letter for kept in self.letters.selected(Selection())]

    async def open_letters(self) -> list[Letter]:
        """Letters a person still has to decide about."""
        return [found for found in await self.dead() if found.state in OPEN_STATES]

    async def states(self) -> set[ReviewState]:
        """The states letters stand in."""
        return {found.state for found in await self.dead()}


def _letter(taken: Taken, reason: Reason, now: int) -> Letter:
    message = taken.received.message
    cycle = taken.verdict.cycle if isinstance(taken.verdict, Acquired) else 0
    name = letter_id(QUEUE, key=message.key, cycle=cycle, message_id=message.id, position=taken.received.position)
    return letter(name, message=message, reason=reason, died_at=now)
