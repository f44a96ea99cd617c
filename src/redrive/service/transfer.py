"""Loading letters that were exported: line by line, in batches, with what the store refused named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from redrive.core.letters.letter import Letter
from redrive.errors import InvalidMessageError
from redrive.service.letters import LetterOperations
from redrive.service.operations import SHOWN
from redrive.service.values import RefusedLine

BATCH: Final = 100
BATCH_BYTES: Final = 8 * 1_048_576
"""Lines held in memory at once; one that is longer is a batch of its own."""


@dataclass(slots=True)
class Loading:
    """Stores letters in batches. `is_dry`: only counts them. `letters` came, `added` of them the store did not have
    yet, `refused` it cannot hold: the first of those are in `refusals`, and none keeps the others of its batch out.

    Killed half-way, what was stored is stored, and the same again stores the rest.
    """

    service: LetterOperations
    is_dry: bool = False
    letters: int = 0
    added: int = 0
    refused: int = 0
    refusals: list[RefusedLine] = field(default_factory=list)
    batch: list[tuple[int, Letter]] = field(default_factory=list)
    batch_bytes: int = 0

    async def add(self, letter: Letter, *, line: int, size: int) -> None:
        """One more, of this line and so many bytes."""
        self.letters += 1
        if self.is_dry:
            return
        self.batch.append((line, letter))
        self.batch_bytes += size
        if len(self.batch) >= BATCH or self.batch_bytes >= BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Store what is in hand; one by one where the store cannot hold one of them."""
        batch, self.batch, self.batch_bytes = self.batch, [], 0
        if not batch:
            return
        try:
            self.added += await self.service.take_in([letter for _, letter in batch])
        except InvalidMessageError:
            for line, letter in batch:
                await self._one(line, letter)

    async def _one(self, line: int, letter: Letter) -> None:
        try:
            self.added += await self.service.take_in([letter])
        except InvalidMessageError as error:
            self.refused += 1
            if len(self.refusals) < SHOWN:
                self.refusals.append(RefusedLine(line=line, letter_id=letter.id, why=error.text))
