"""The entries of dead letters in a broker's own dead-letter queues, where other tools look.

The letter store is authoritative; an entry is the letter as a document, under the letter's id. It leaves its queue once
the letter is sent back or closed, and only from the front, so that looking never changes the order: one redriven before
older open letters keeps its entry until those are gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from redrive.core import settlement, wire
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import OPEN_STATES
from redrive.core.message import HEADER_LETTER, Message
from redrive.core.ports import Broker, Clock, LetterStore, Outgoing, Settle
from redrive.core.settlement import Reason
from redrive.core.units import Millis

TRIM_BATCH: Final = 200
"""Entries looked at after a redrive, to drop those whose letters were sent."""

TRIM_LEASE_MS: Final[Millis] = 2_000
"""Entries being dropped are held for so long; should the drop be cut off, the next one finds them after it."""

WORKER: Final = "redrive"
STILL_OPEN: Final = Reason(code="STILL_OPEN", text="its letter waits for a person")


class DeadLetterQueues:
    """Puts entries in and drops them again. A letter without a dead-letter queue has none."""

    def __init__(self, broker: Broker, letters: LetterStore, *, clock: Clock) -> None:
        self._broker = broker
        self._letters = letters
        self._clock = clock

    async def put(self, letters: Sequence[Letter]) -> None:
        """Publish the entries of letters that are stored."""
        limit = self._broker.features.max_body_bytes
        entries = [_entry(letter, limit_bytes=limit) for letter in letters if letter.dead_letter_queue]
        await self._broker.publish(entries)

    async def trim(self, gone: Sequence[Letter]) -> None:
        """Drop entries of letters that are no longer open from the front of the queues of these."""
        for queue in {letter.dead_letter_queue for letter in gone if letter.dead_letter_queue}:
            waiting = await self._broker.peek(queue, limit=TRIM_BATCH)
            done: set[str] = set()
            for copy in waiting:
                found = await self._letters.get(copy.id)
                if found is not None and found[0].state in OPEN_STATES:
                    break
                done.add(copy.id)
            if done:
                await self._drop(queue, done)

    async def _drop(self, queue: str, letter_ids: set[str]) -> None:
        received = await self._broker.receive(
            queue, limit=len(letter_ids), lease_ms=TRIM_LEASE_MS, worker=WORKER, wait_ms=0
        )
        back = settlement.Requeue(due_at=self._clock.now(), reason=STILL_OPEN)
        await self._broker.settle(
            [
                Settle(lease=item.lease, settlement=settlement.ACK if item.message.id in letter_ids else back)
                for item in received
            ]
        )


def _entry(letter: Letter, *, limit_bytes: int) -> Outgoing:
    """One too large for the broker is empty: its header names the letter, and the store has it whole."""
    body = json.dumps(wire.letter_document(letter)).encode()
    message = Message(
        id=letter.id,
        key=letter.id,
        body=body if len(body) <= limit_bytes else b"",
        content_type="application/json",
        tenant=letter.message.tenant,
        published_at=letter.dead_lettered_at,
        headers={HEADER_LETTER: letter.id},
    )
    return Outgoing(queue=letter.dead_letter_queue, message=message)
