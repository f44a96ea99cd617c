"""The entries of dead letters in a broker's own dead-letter queues, where other tools look.

The letter store is authoritative. An entry leaves its queue once the letter is sent back or closed, as far as it lies
among the first `TRIM_BATCH` there: a deep queue is not gone through for one entry, which then stays until those before
it are gone.

What has not been found is remembered by the process alone. One that is killed leaves entries behind; so once a redrive
has passed, whoever closed its letters looks through the queue a last time and asks the store about what lies there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from redrive.core import wire
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import HEADER_LETTER, Message
from redrive.core.ports import Broker, Clock, LetterStore, Outgoing
from redrive.core.units import Millis

TRIM_BATCH: Final = 500
"""Entries looked at for those whose letters are gone."""

TRIM_EVERY_MS: Final[Millis] = 1_000
"""Closing letters looks at a queue no more often than this: their redrive has dropped the entries already."""

MAX_LEFT: Final = 10_000
"""Letters remembered whose entries have not been found yet."""

MAX_LOOKS: Final = 10
"""Looks in a row that find none of them; then they are forgotten: somebody else has taken them."""

SWEEP_EVERY_MS: Final[Millis] = 10_000
"""The store is asked about a queue's entries no more often than this."""

GONE: Final = frozenset({ReviewState.REPLAYED, ReviewState.CLOSED})

LetterDocument: TypeAlias = Callable[[Letter], Mapping[str, Any]]
"""A system's own words for a dead letter, as it lies in the dead-letter queue; the store has the letter whole."""

EntryOf: TypeAlias = Callable[[Letter], Outgoing | None]
"""How a letter lies in its dead-letter queue; None: the broker itself moves the message there, or there is none."""


class DeadLetterQueues:
    """Puts entries in and drops them again. A letter without a dead-letter queue has none."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        letters: LetterStore,
        entry_of: EntryOf | None = None,
        documents: Mapping[str, LetterDocument] | None = None,
    ) -> None:
        self._broker = broker
        self._letters = letters
        self._clock = clock
        self._entry_of = self._document if entry_of is None else entry_of
        self._documents = {} if documents is None else documents
        self._left: dict[str, dict[str, Letter]] = {}
        self._trimmed_ms: dict[str, float] = {}
        self._vain_looks: dict[str, int] = {}
        self._unswept: set[str] = set()
        self._swept_ms: dict[str, float] = {}

    async def put(self, letters: Sequence[Letter]) -> None:
        """Publish the entries of letters that are stored."""
        entries = [entry for letter in letters if letter.dead_letter_queue and (entry := self._entry_of(letter))]
        if entries:
            await self._broker.publish(entries)

    def has_entry(self, letter: Letter) -> bool:
        """Whether what lies in its dead-letter queue is an entry that names it."""
        return bool(letter.dead_letter_queue) and self._entry_of(letter) is not None

    async def trim(self, gone: Sequence[Letter]) -> None:
        """Drop the entries of these letters, which are no longer open, as far as they are found."""
        for queue in self._remember(gone):
            await self._drop(queue)

    async def trim_now_and_then(self, gone: Sequence[Letter]) -> None:
        """As `trim`, but each queue at most once in `TRIM_EVERY_MS`; the others are dropped with a later call."""
        now_ms = self._clock.monotonic_ms()
        for queue in self._remember(gone):
            if now_ms - self._trimmed_ms.get(queue, -TRIM_EVERY_MS) >= TRIM_EVERY_MS:
                await self._drop(queue)

    async def trim_left(self) -> None:
        """Look again for what earlier calls have not found: another process had it in its hands just then. Then, for
        what processes that were killed have not found.
        """
        now_ms = self._clock.monotonic_ms()
        for queue in tuple(self._left):
            if now_ms - self._trimmed_ms.get(queue, -TRIM_EVERY_MS) >= TRIM_EVERY_MS:
                await self._drop(queue)
        for queue in self._unswept.difference(self._left):
            if now_ms - self._swept_ms.get(queue, -SWEEP_EVERY_MS) >= SWEEP_EVERY_MS:
                self._swept_ms[queue] = now_ms
                await self._sweep(queue)

    async def _sweep(self, queue: str) -> None:
        """Drop the entries whose letters the store says are gone. Done with the queue once there are none."""
        copies = await self._broker.peek(queue, limit=TRIM_BATCH)
        ids = {str(copy.headers[HEADER_LETTER]) for copy in copies if HEADER_LETTER in copy.headers}
        page = await self._letters.find(Selection(ids=tuple(ids), states=GONE), limit=TRIM_BATCH) if ids else None
        gone = frozenset(letter.id for letter in page.letters) if page is not None else frozenset()
        if gone:
            await self._broker.discard(queue, lambda copy: copy.headers.get(HEADER_LETTER) in gone, limit=TRIM_BATCH)
        else:
            self._unswept.discard(queue)

    def _remember(self, gone: Sequence[Letter]) -> list[str]:
        for letter in gone:
            if letter.dead_letter_queue:
                left = self._left.setdefault(letter.dead_letter_queue, {})
                left[letter.id] = letter
                if self.has_entry(letter):
                    self._unswept.add(letter.dead_letter_queue)
                if len(left) > MAX_LEFT:
                    del left[next(iter(left))]
        return list(dict.fromkeys(letter.dead_letter_queue for letter in gone if letter.dead_letter_queue))

    async def _drop(self, queue: str) -> None:
        letters = self._left.get(queue, {})
        by_id = frozenset(letters)
        # What the broker itself has moved there carries no letter's id, but is the message as it was taken.
        rejected = frozenset(_mark(each.message) for each in letters.values() if self._entry_of(each) is None)
        self._trimmed_ms[queue] = self._clock.monotonic_ms()

        def is_gone(copy: Message) -> bool:
            return copy.headers.get(HEADER_LETTER) in by_id or (bool(rejected) and _mark(copy) in rejected)

        # The oldest are sent back first and lie in front: as a rule no more than themselves has to be looked at, and
        # looking costs the broker as much as a delivery.
        dropped = await self._broker.discard(queue, is_gone, limit=min(len(letters), TRIM_BATCH))
        if dropped < len(letters) < TRIM_BATCH:
            dropped += await self._broker.discard(queue, is_gone, limit=TRIM_BATCH)
        looks = self._vain_looks[queue] = 0 if dropped else self._vain_looks.get(queue, 0) + 1
        if dropped >= len(letters) or looks >= MAX_LOOKS:
            self._left.pop(queue, None)
            self._vain_looks.pop(queue, None)

    def _own_document(self, letter: Letter) -> bytes | None:
        """What the consumer's own function makes of it; None where it has none, or that raises: a letter is never lost
        for its form.
        """
        make = self._documents.get(letter.queue)
        if make is None:
            return None
        try:
            return json.dumps(dict(make(letter)), allow_nan=False).encode()
        except Exception:  # noqa: BLE001 - a user's function may raise anything
            return None

    def _document(self, letter: Letter) -> Outgoing:
        """The letter as a document, under its id. One too large for the broker is empty: its header names the letter,
        and the store has it whole.
        """
        body = self._own_document(letter) or json.dumps(wire.letter_document(letter), separators=(",", ":")).encode()
        message = Message(
            id=letter.id,
            key=letter.id,
            body=body if len(body) <= self._broker.features.max_body_bytes else b"",
            content_type="application/json",
            tenant=letter.message.tenant,
            published_at=letter.dead_lettered_at,
            headers={HEADER_LETTER: letter.id},
        )
        return Outgoing(queue=letter.dead_letter_queue, message=message)


def _mark(message: Message) -> tuple[str, bytes]:
    return message.id, message.body
