"""Operations that erase: one person's letters out of the store, the broker's own dead-letter queues, and archives.

The store goes first: a letter that is being archived at that moment is in the file before it leaves the store. Killed
anywhere, what is gone is gone and the rest is found again by the same command. The audit trail of a letter, with the
texts of its notes, goes with it, and the record of a dead-lettered key goes before its letter (`erasing_claims.py`).
What stays is said in the docs: keys of what was processed, messages that wait in queues, the conditions of redrive
jobs, and what was logged.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from redrive.core.letters.letter import Letter
from redrive.core.letters.meant import is_meant
from redrive.core.letters.selection import Selection
from redrive.errors import ConfigurationError
from redrive.runtime.archive import ArchiveFile, archive_files, described
from redrive.runtime.erasing import Found, erase_from, meant_in, record
from redrive.service.erasing_claims import ClaimEraser, Scope, look, scopes_of
from redrive.service.letters import LetterOperations
from redrive.service.operations import Counted
from redrive.service.values import Erasure

ERASE_BATCH: Final = 100
"""Whole letters held in memory at once."""


class ErasingOperations(LetterOperations):
    """On letters, in stores and files."""

    @property
    def archive_folder(self) -> Path:
        """Where workers write archives."""
        return Path(self._app.settings.archive)

    async def archives(self) -> tuple[ArchiveFile, ...]:
        """The files of the archive folder, with what lies in each. Raises `OSError`."""
        return await asyncio.to_thread(lambda: tuple(described(path) for path in archive_files(self.archive_folder)))

    async def to_erase(self, selection: Selection, *, files: Sequence[Path] = ()) -> Erasure:
        """What `erase` would remove now. `files`: archives besides those of the archive folder. Nothing is changed.

        Raises `ConfigurationError` where nothing restricts the selection, `OSError` for a file that cannot be read.
        """
        self._refuse_everything(selection)
        letters, held = 0, 0
        scopes = self._named(selection)
        async for letter in self._selected(selection, limit=None, on_count=None):
            held += letter.outstanding_job is not None
            letters += letter.outstanding_job is None
            if letter.outstanding_job is None and letter.key is not None:
                scopes.add((letter.queue, letter.key))
        paths = await asyncio.to_thread(self._archives, files)
        looked = [await asyncio.to_thread(self._look_into, path, selection) for path in paths]
        in_files = [found for found, _ in looked]
        scopes |= {scope for _, found in looked for scope in found}
        claims = await look(self._app.backend.claims, scopes, now=self._app.clock.now())
        return Erasure(
            claims=claims.gone,
            claims_kept=claims.kept,
            letters=letters,
            held=held,
            archived=sum(each.letters for each in in_files),
            files=sum(each.letters > 0 for each in in_files),
            unreadable=sum(each.unreadable for each in in_files),
        )

    async def erase(
        self, selection: Selection, *, actor: str, files: Sequence[Path] = (), on_count: Counted | None = None
    ) -> Erasure:
        """Remove these letters for good, everywhere, without an archive, and record that it was done. What a redrive
        job holds stays, and is counted: say it again once the job has ended.

        Raises as `to_erase`, and `ConfigurationError` where another process writes into an archive.
        """
        self._refuse_everything(selection)
        mark = {"id": f"er_{secrets.token_hex(6)}", "actor": actor}
        await self._record({**mark, "state": "begun"})
        claims = ClaimEraser(self._app.backend.claims, clock=self._app.clock)
        await claims.forget(self._named(selection))
        letters, held = await self._erase_letters(selection, on_count, claims)
        paths = await asyncio.to_thread(self._archives, files)
        looked = []
        for path in paths:
            # As with letters: once the copy is gone nobody would look for its key again.
            _, scopes = await asyncio.to_thread(self._look_into, path, selection)
            await claims.forget(scopes)
            looked.append(await asyncio.to_thread(self._erase_file, path, selection))
        keys = await claims.end()
        done = Erasure(
            claims=keys.gone,
            claims_kept=keys.kept,
            letters=letters,
            held=held,
            archived=sum(gone for gone, _ in looked),
            files=sum(gone > 0 for gone, _ in looked),
            unreadable=sum(unreadable for _, unreadable in looked),
        )
        counts = {"letters": done.letters, "archived": done.archived, "files": done.files, "held": done.held}
        await self._record({**mark, "state": "done", **counts})
        self._app.events.emit("letters.erased", actor=actor, **counts)
        return done

    async def _erase_letters(
        self, selection: Selection, on_count: Counted | None, claims: ClaimEraser
    ) -> tuple[int, int]:
        gone, held = 0, 0
        batch: list[Letter] = []

        async def flush() -> int:
            # Before the letters: a key or an entry whose letter is gone would never be looked for again.
            await claims.forget(scopes_of(batch))
            if self._app.backend.drop_entries is not None:
                await self._app.backend.drop_entries(batch)
            these = Selection(ids=tuple(letter.id for letter in batch))
            count = await self._app.backend.letters.prune(now=self._app.clock.now(), limit=len(batch), selection=these)
            batch.clear()
            return count

        async for letter in self.whole(selection, on_count=on_count):
            if letter.outstanding_job is not None:
                held += 1
                continue
            batch.append(letter)
            if len(batch) >= ERASE_BATCH:
                gone += await flush()
        gone += await flush() if batch else 0
        return gone, held

    def _archives(self, files: Sequence[Path]) -> list[Path]:
        missing = [path for path in files if not path.is_file()]
        if missing:
            raise ConfigurationError(f'There is no file "{missing[0]}". Nothing was erased.')
        return list({path.resolve(): path for path in (*archive_files(self.archive_folder), *files)}.values())

    def _named(self, selection: Selection) -> set[Scope]:
        """The records of a key that is named, whether there are letters of it or not."""
        if selection.key is None or replace(selection, key=None, queue=None) != Selection():
            return set()
        queues = self._app.consumers if selection.queue is None else (selection.queue,)
        return {(queue, selection.key) for queue in queues}

    @staticmethod
    def _look_into(path: Path, selection: Selection) -> tuple[Found, set[Scope]]:
        scopes: set[Scope] = set()

        def is_one(letter: Letter) -> bool:
            if not is_meant(selection, letter):
                return False
            scopes.update(scopes_of([letter]))
            return True

        return meant_in(path, is_one), scopes

    @staticmethod
    def _erase_file(path: Path, selection: Selection) -> tuple[int, int]:
        found = meant_in(path, lambda letter: is_meant(selection, letter))
        gone = erase_from(path, lambda letter: is_meant(selection, letter)) if found.letters else 0
        return gone, found.unreadable

    async def _record(self, entry: dict[str, Any]) -> None:
        await asyncio.to_thread(record, self.archive_folder, {**entry, "at": self._app.clock.now()})

    @staticmethod
    def _refuse_everything(selection: Selection) -> None:
        if selection == Selection():
            raise ConfigurationError(
                "Whose letters? Nothing was erased.", hint="Name a key, a tenant, a header, ids or another filter."
            )
