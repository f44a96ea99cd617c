"""OrderedLedger: makes decisions durable where broker, claims, letters and jobs do not share one transaction.

Each call is a fixed order of steps, chosen so that a crash between any two leaves a duplicate, never a hole: whatever
copies a message is confirmed before the original is let go. Every step can be repeated. Killed right here, what is
true?

`publish` (with `once`): look at the record, publish, register.
- before the publish: nothing happened; the caller got no answer and repeats.
- after the publish, before the record: the message is queued and the key looks new; a repeat queues a second copy
  with the same key, whose effect the claim removes.

`take`: receive, claim.
- after the receive: the lease ends and the message comes again. The broker has counted a lost start; the claim
  record has not, and wins. A claim that fails without a kill hands the messages back, at no cost.

`commit` of a dead letter: check the fence, put the letter, publish it to the dead-letter queue, end the claim, settle.
- after the put: the message comes again. Its letter has the same id, so the one on record stays.
- after the publish: as before, with a second entry in the dead-letter queue under the same id.
- after the claim's end: the message comes again and, the key being dead-lettered, starts a new cycle: it is tried
  once more from the start and, failing again, leaves a second letter of the next cycle. That is the duplicate. (Where
  the broker does not count starts and the message says when it was sent, the letter is found by that, and the copy
  leaves the queue unseen.)

`commit` of any other end: end the claim, close the letter the copy came from, settle.
- after the claim's end: the message comes again. Processed: it is a duplicate and acknowledged unseen. Failed or
  released: it is tried again, at the end of its lease instead of its due time.
- after the letter was closed: as above; closing it again changes nothing.

`transaction` (where the claim store offers one): begin, the handler's statements, check the claim's token, end the
claim, commit; then, by `commit`, send what was published inside and settle.
- before the commit: the store rolls back; nothing happened, and the message comes again.
- after the commit: the effects are there and the key is processed. The message comes again as a duplicate and is
  acknowledged unseen; what was published inside waits in the store, and any process's upkeep sends it.
- after the sending: as before; what is sent once more carries the same message id.

A broker that does not count starts: see `redrive.runtime.starts`. One whose deliveries have no leases (RabbitMQ: they
belong to a connection) takes its messages back when the connection is lost, while their handlers go on: such a copy is
told "in progress" until the handler has ended. A processed one is then a duplicate; a failed one is tried again at
once instead of at its due time.

`forward`: see `redrive.runtime.forwarding`.

Fences. A claim's token is checked by the store when the claim ends, before anything is settled; a dead letter is
checked and its leases renewed first, because its letter comes before the claim's end. Weak spots: a commit of a dead
letter that itself takes longer than `COMMIT_LEASE_MS` can leave the letter of a delivery that has passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from redrive.core import settlement
from redrive.core.idempotency import (
    Acquired,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    Verdict,
    conflicts,
    is_expired,
    state_at,
)
from redrive.core.letters.letter import Attempt, AttemptOutcome, Letter, ReviewState, letter_id
from redrive.core.letters.review import CLOSED_BY, CLOSED_NOTE
from redrive.core.letters.selection import OPEN_STATES
from redrive.core.message import HEADER_LETTER
from redrive.core.ports import (
    Broker,
    ClaimEnd,
    ClaimStore,
    Clock,
    End,
    Features,
    Forward,
    JobStore,
    LedgerTransaction,
    LetterStore,
    Outgoing,
    Published,
    Received,
    Registration,
    ReviewChange,
    Settle,
    Taken,
    TransactionalClaimStore,
    Unsent,
)
from redrive.core.redrive import Job
from redrive.core.settlement import Reason
from redrive.core.units import Millis, UnixMs
from redrive.errors import RedriveError, UnsupportedError
from redrive.runtime.dead_letter_queues import DeadLetterQueues, EntryOf, LetterDocument
from redrive.runtime.forwarding import OWNER, Forwarding
from redrive.runtime.starts import Starts, count_end, with_lost
from redrive.runtime.stepwise_transaction import StepwiseTransaction

COMMIT_LEASE_MS: Final[Millis] = 30_000
"""Leases are renewed by this much before a dead letter is written."""

DEAD_ALREADY: Final = Reason(code="DEAD_ALREADY", text="its letter is written already")
HANDED_BACK: Final = Reason(code="CLAIM_UNAVAILABLE", text="the claim store could not be asked")


class OrderedLedger:
    """A `Ledger` over any broker and stores. The module's text says what a crash between two steps leaves."""

    def __init__(
        self,
        *,
        broker: Broker,
        claims: ClaimStore,
        letters: LetterStore,
        jobs: JobStore,
        clock: Clock,
        entry_of: EntryOf | None = None,
        documents: Mapping[str, LetterDocument] | None = None,
    ) -> None:
        """`entry_of`: how a dead letter lies in its dead-letter queue; None: as a document. `documents`: the consumers'
        own, by queue.
        """
        self._broker = broker
        self._claims = claims
        self._transactional = claims if isinstance(claims, TransactionalClaimStore) else None
        self._letters = letters
        self._clock = clock
        self._counts_starts = broker.features.counts_starts
        self._has_leases = broker.features.leases
        self._starts = Starts(broker, claims, clock=clock, spared=frozenset({OWNER}))
        # Claims that a transaction has ended, and what it left to be sent; until the delivery's own commit.
        self._committed: dict[ClaimRef, list[Unsent]] = {}
        self._dead_letter_queues = DeadLetterQueues(
            broker, clock=clock, letters=letters, entry_of=entry_of, documents=documents
        )
        self._forwarding = Forwarding(
            broker=broker, claims=claims, letters=letters, jobs=jobs, entries=self._dead_letter_queues
        )

    @property
    def features(self) -> Features:
        """The broker's; with transactions where the claim store offers them."""
        return replace(self._broker.features, atomic=False, transactions=self._transactional is not None)

    async def open(self) -> None:
        """Open the stores, then the broker: nothing can be taken before it can be claimed."""
        await self._claims.open()
        await self._letters.open()
        await self._broker.open()

    async def close(self) -> None:
        """Close the broker, then the stores."""
        await self._broker.close()
        await self._letters.close()
        await self._claims.close()

    # ------------------------------------------------------------------------------------------------- publish

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        """See `Ledger.publish`. Two publishers of one key at one moment may both queue a copy; one of them runs."""
        answers = await self._known(batch)
        fresh = [outgoing for outgoing, answer in zip(batch, answers, strict=True) if answer is None]
        queued = iter(await self._publish_and_register(fresh))
        return [next(queued) if answer is None else answer for answer in answers]

    async def _known(self, batch: Sequence[Outgoing]) -> list[Published | None]:
        """For each message the answer that its key is known already; None where it is to be queued."""
        now = self._clock.now()
        # What this batch itself has seen: (queue, key) to digest.
        seen: dict[tuple[str, str], str | None] = {}
        answers: list[Published | None] = []
        for outgoing in batch:
            key = outgoing.message.key
            if not outgoing.once or key is None:
                answers.append(None)
                continue
            scope = (outgoing.queue, key)
            if scope not in seen:
                record = await self._claims.get(*scope)
                if record is None or not _is_live(record, now):
                    seen[scope] = outgoing.digest
                    answers.append(None)
                    continue
                seen[scope] = record.digest
            answers.append(Published(duplicate=True, conflict=conflicts(seen[scope], outgoing.digest)))
        return answers

    async def _publish_and_register(self, fresh: Sequence[Outgoing]) -> list[Published]:
        answers = await self._broker.publish(fresh)
        keyed = [(number, item) for number, item in enumerate(fresh) if item.once and item.message.key is not None]
        registered = await self._claims.register(
            [Registration(queue=item.queue, key=item.message.key or "", digest=item.digest) for _, item in keyed]
        )
        for (number, _), known in zip(keyed, registered, strict=True):
            # A consumer may have claimed it by now: known, then, but queued by this call. Only another body tells.
            if known.conflict:
                answers[number] = Published(duplicate=True, conflict=True)
        return answers

    # ------------------------------------------------------------------------------------------------- take, renew

    async def take(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis, claims: bool
    ) -> list[Taken]:
        """See `Ledger.take`."""
        received = await self._broker.receive(queue, limit=limit, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms)
        if not received:
            return []
        claiming = asyncio.ensure_future(self._claim(queue, received, lease_ms=lease_ms, worker=worker, claims=claims))
        try:
            taken = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await asyncio.shield(self._release(claiming, received))
            raise
        except RedriveError:
            await asyncio.shield(self._hand_back(received))
            raise
        return taken if self._counts_starts else await self._without_remains(taken)

    async def _release(self, claiming: asyncio.Future[list[Taken]], received: Sequence[Received]) -> None:
        """Whoever asked has gone. A claim that is being made cannot be called back: it is made, then released, so that
        nobody takes it for a start.
        """
        end = settlement.Requeue(due_at=self._clock.now(), reason=HANDED_BACK)
        try:
            await self.commit([End(taken=each, settlement=end) for each in await claiming])
        except RedriveError:
            await self._hand_back(received)

    async def _without_remains(self, taken: list[Taken]) -> list[Taken]:
        """Without copies of messages whose letters are written already: their delivery ended as a dead letter, and the
        connection was lost before the broker heard of it. They do not run again; they leave the queue as they were
        about to.
        """
        remains = [each for each in taken if _may_remain(each) and await self._is_dead(each)]
        if not remains:
            return taken
        end = settlement.DeadLetter(reason=DEAD_ALREADY)
        await self._broker.settle([Settle(lease=each.received.lease, settlement=end) for each in remains])
        refs = [ref for each in remains if (ref := _ref(each)) is not None]
        await self._claims.finish([ClaimEnd(ref=ref, state=ClaimState.DEAD_LETTERED) for ref in refs])
        return [each for each in taken if each not in remains]

    async def _is_dead(self, taken: Taken) -> bool:
        message = taken.received.message
        assert isinstance(taken.verdict, Acquired)
        name = letter_id(
            taken.verdict.ref.queue,
            key=message.key,
            cycle=taken.verdict.cycle - 1,
            message_id=message.id,
            position="",
            published_at=message.published_at,
        )
        found = await self._letters.get(name)
        if found is None or found[0].state not in OPEN_STATES or found[0].outstanding_job is not None:
            return False
        # Somebody may have moved it back from its dead-letter queue by hand. An entry names its letter; what the broker
        # itself has put there does not, but then it comes as a message nobody has had in hand.
        is_marked = self._dead_letter_queues.has_entry(found[0])
        return message.headers.get(HEADER_LETTER) != name and (is_marked or taken.received.redelivered)

    async def _claim(
        self, queue: str, received: Sequence[Received], *, lease_ms: Millis, worker: str, claims: bool
    ) -> list[Taken]:
        keyed = [item for item in received if item.message.key is not None] if claims else []
        verdicts: list[Verdict] = []
        if keyed:
            pairs = [(queue, item.message.key or "") for item in keyed]
            verdicts = await self._starts.claim(pairs, lease_ms=lease_ms, owner=worker)
        if self._counts_starts:
            told = iter(verdicts)
            return [
                Taken(received=item, verdict=next(told) if claims and item.message.key is not None else None)
                for item in received
            ]
        taken = [
            Taken(received=with_lost(item, verdict) if type(verdict) is Acquired else item, verdict=verdict)
            for item, verdict in zip(keyed, verdicts, strict=True)
        ]
        if len(keyed) == len(received):
            return taken
        others = [item for item in received if not claims or item.message.key is None]
        counted = iter(await self._starts.count(others, lease_ms=lease_ms, worker=worker))
        with_key = iter(taken)
        return [next(with_key) if claims and item.message.key is not None else next(counted) for item in received]

    async def _hand_back(self, received: Sequence[Received]) -> None:
        """Give messages back unseen. Failing that they come back when their leases end."""
        end = settlement.Requeue(due_at=self._clock.now(), reason=HANDED_BACK)
        with suppress(RedriveError):
            await self._broker.settle([Settle(lease=item.lease, settlement=end) for item in received])

    def renew(self, batch: Sequence[Taken], *, lease_ms: Millis) -> list[bool]:
        """See `Ledger.renew`. Claims first: a delivery whose claim has passed on must not keep its message either."""
        if not batch:
            return []
        refs = [_ref(taken) or taken.counted for taken in batch]
        renewed = iter(self._claims.renew([ref for ref in refs if ref is not None], lease_ms=lease_ms))
        is_held = [ref is None or next(renewed) for ref in refs]
        # Without leases the claim alone tells whose the delivery is; without a claim, only the broker knows.
        asked = [held and (self._has_leases or _ref(taken) is None) for taken, held in zip(batch, is_held, strict=True)]
        leases = [taken.received.lease for taken, is_asked in zip(batch, asked, strict=True) if is_asked]
        kept = iter(self._broker.renew(leases, lease_ms=lease_ms))
        return [next(kept) if is_asked else held for is_asked, held in zip(asked, is_held, strict=True)]

    # ------------------------------------------------------------------------------------------------- commit

    async def commit(self, batch: Sequence[End]) -> list[bool]:
        """See `Ledger.commit`."""
        if not batch:
            return []
        is_current = await self._check_dead(batch)
        await self._write_letters([end for end, current in zip(batch, is_current, strict=True) if current])
        is_current = await self._end_claims(batch, is_current)
        await self._send_committed(batch)
        await self._close_letters([end for end, current in zip(batch, is_current, strict=True) if current])
        return await self._settle(batch, is_current)

    async def send_leftovers(self, *, limit: int) -> int:
        """Send what transactions of processes that are gone have left unsent; how many. Entries in dead-letter queues
        that this process could not drop are looked for again.
        """
        await self._dead_letter_queues.trim_left()
        if self._transactional is None:
            return 0
        left = await self._transactional.unsent(limit=limit)
        if left:
            await self._broker.publish([each.outgoing for each in left])
            await self._transactional.sent(left)
        return len(left)

    async def drop_entries(self, letters: Sequence[Letter]) -> None:
        """Letters that people close or remove: their entries leave the broker's dead-letter queues, as far as found."""
        await self._dead_letter_queues.trim(letters)

    async def _check_dead(self, batch: Sequence[End]) -> list[bool]:
        """False for each dead letter whose lease or claim is stale."""
        numbers = [number for number, end in enumerate(batch) if isinstance(end.settlement, settlement.DeadLetter)]
        answers = [True] * len(batch)
        if numbers:
            taken = [batch[number].taken for number in numbers]
            held = await asyncio.to_thread(self.renew, taken, lease_ms=COMMIT_LEASE_MS)
            for number, is_held in zip(numbers, held, strict=True):
                # One that this very commit has ended before it was cut off is no longer held, and yet ours.
                answers[number] = is_held or await self._is_ended(batch[number])
        return answers

    async def _write_letters(self, ends: Sequence[End]) -> None:
        letters = [end.letter for end in ends if end.letter is not None]
        if letters:
            await self._letters.put(letters)
            await self._dead_letter_queues.put(letters)

    async def _end_claims(self, batch: Sequence[End], is_current: Sequence[bool]) -> list[bool]:
        now = self._clock.now()
        claimed = [
            (number, claim_end)
            for number, end in enumerate(batch)
            if is_current[number] and (claim_end := _claim_end(end, now)) is not None
            if not self._committed or claim_end.ref not in self._committed
        ]
        answers = list(is_current)
        moved = await self._claims.finish([claim_end for _, claim_end in claimed]) if claimed else []
        for (number, claim_end), has_moved in zip(claimed, moved, strict=True):
            # A count is no fence: whoever has the delivery ends it.
            is_count = batch[number].taken.counted is claim_end.ref
            answers[number] = has_moved or is_count or await self._is_ended(batch[number])
        self._starts.ended(end.taken.counted for end in batch if end.taken.counted is not None)
        return answers

    async def _send_committed(self, batch: Sequence[End]) -> None:
        """Send what handlers published inside their transactions, which have committed."""
        if not self._committed or self._transactional is None:
            return
        refs = [ref for end in batch if (ref := _ref(end.taken)) is not None and ref in self._committed]
        unsent = [each for ref in refs for each in self._committed[ref]]
        if unsent:
            await self._broker.publish([each.outgoing for each in unsent])
            await self._transactional.sent(unsent)
        for ref in refs:
            # Kept until the delivery itself is settled, should this very commit be tried again.
            self._committed[ref] = []

    async def _is_ended(self, end: End) -> bool:
        """Whether the claim stands as this end leaves it: an earlier try of the same commit got that far."""
        claim_end = _claim_end(end, self._clock.now())
        if claim_end is None or end.taken.counted is not None:
            return False
        record = await self._claims.get(claim_end.ref.queue, claim_end.ref.key)
        if record is None or record.token != claim_end.ref.token:
            return False
        # A release leaves a record that had failed before as failed.
        is_released = claim_end.state is ClaimState.RECEIVED and record.state is ClaimState.FAILED
        return is_released or record.state is claim_end.state

    async def _close_letters(self, ends: Sequence[End]) -> None:
        """Close the letters that processed copies came from; one that is closed already stays as it is."""
        closed = []
        for end in ends:
            if end.closes_letter is not None and isinstance(end.settlement, settlement.Ack):
                found = await self._letters.get(end.closes_letter)
                if found is not None and _is_closed_by(found[0], end):
                    closed.append(found[0])
        if not closed:
            return
        at = self._clock.now()
        await self._letters.review(
            [
                ReviewChange(letter_id=letter.id, to=ReviewState.CLOSED, actor=CLOSED_BY, at=at, note=CLOSED_NOTE)
                for letter in closed
                if letter.state is not ReviewState.CLOSED
            ]
        )
        await self._dead_letter_queues.trim_now_and_then(closed)

    async def _settle(self, batch: Sequence[End], is_current: Sequence[bool]) -> list[bool]:
        current = [end for end, is_ours in zip(batch, is_current, strict=True) if is_ours]
        settled = iter(
            await self._broker.settle(
                [
                    Settle(
                        lease=end.taken.received.lease, settlement=end.settlement, entry=end.entry, lost=self._lost(end)
                    )
                    for end in current
                ]
            )
        )
        if self._committed:
            for ref in filter(None, (_ref(end.taken) for end in batch)):
                self._committed.pop(ref, None)
        # Where the claim has moved the end is true, whoever holds the broker's lease by now.
        return [
            is_ours and (next(settled) or _ref(end.taken) is not None)
            for end, is_ours in zip(batch, is_current, strict=True)
        ]

    def _lost(self, end: End) -> Attempt | None:
        """The start before this one, where it never ended and only the claim store knows."""
        history = end.taken.received.history
        if self._counts_starts or not history or not isinstance(end.settlement, settlement.Retry):
            return None
        return history[-1] if history[-1].outcome is AttemptOutcome.INTERRUPTED else None

    def transaction(self, end: End) -> LedgerTransaction:
        """A transaction of the claim store: the handler's statements and the key's `processed` commit together.

        Raises `UnsupportedError` where the store offers none, or the delivery has no claim that could tell, after a
        crash, that its effects are there.
        """
        message_id = end.taken.received.message.id
        if self._transactional is None:
            raise UnsupportedError(
                f'The store beside broker "{self.features.name}" has no transactions. Message "{message_id}" is '
                "untouched.",
                hint="Use an idempotency key in the effect itself, or a SQLite store.",
            )
        claim_end = _claim_end(end, self._clock.now())
        if claim_end is None or end.taken.counted is not None:
            raise UnsupportedError(
                f'Message "{message_id}" has no idempotency key: after a crash nothing could tell that its effects are '
                "there. It is untouched.",
                hint="Let its producer give it a message id, or write without the transaction.",
            )
        return StepwiseTransaction(
            self._transactional.transaction(claim_end), lambda unsent: self._remember(claim_end.ref, unsent)
        )

    def _remember(self, ref: ClaimRef, unsent: Sequence[Unsent]) -> None:
        """From the handler's thread or the loop: a transaction has committed."""
        self._committed[ref] = list(unsent)

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        """See `Ledger.forward`."""
        return await self._forwarding.carry_out(job, batch) if batch else []


def _is_live(record: ClaimRecord, now: int) -> bool:
    """Whether a `once` publish is a duplicate of this record."""
    return not is_expired(record, now) and record.state is not ClaimState.DEAD_LETTERED


def _ref(taken: Taken) -> ClaimRef | None:
    return taken.verdict.ref if isinstance(taken.verdict, Acquired) else None


def _may_remain(taken: Taken) -> bool:
    """Whether this is the first start after a dead letter. A message that does not say when it was sent cannot be told
    from its producer's next one of the same key.
    """
    verdict = taken.verdict
    is_first = type(verdict) is Acquired and verdict.cycle > 0 and verdict.attempts == 1
    return is_first and taken.received.message.published_at > 0


def _is_closed_by(letter: Letter, end: End) -> bool:
    """Whether this copy may close the letter it names. The name stands in a header, which anybody can write: so only a
    letter that was sent, or is being sent, or that of this very message.
    """
    if letter.state in (ReviewState.REPLAYED, ReviewState.CLOSED) or letter.outstanding_job is not None:
        return True
    received = end.taken.received
    return (letter.queue, letter.message.id) == (received.lease.queue, received.message.id)


def _claim_end(end: End, now: UnixMs) -> ClaimEnd | None:
    """How the claim or the count of this delivery ends; None where it holds none."""
    ref = _ref(end.taken)
    if ref is None:
        counted = end.taken.counted
        return None if counted is None else count_end(counted, end, now)
    state = state_at(end.settlement)
    is_terminal = state in (ClaimState.PROCESSED, ClaimState.DEAD_LETTERED)
    return ClaimEnd(ref=ref, state=state, expires_at=end.claim_expires_at if is_terminal else None)
