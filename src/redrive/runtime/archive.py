"""Letters as a file of JSON lines: whole, exact, and loaded again by `redrive dlq import`.

One letter a line, as `redrive.core.wire.letter_document` writes it. A file is on disk before anything is removed
because of it. A line that a crash or a full disk cut off is the last one, and belongs to letters that were not removed:
whoever appends to the file again takes it away first, for what is written behind it could not be read any more.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from redrive.core.letters.letter import Letter
from redrive.core.units import UnixMs
from redrive.core.wire import letter_document, letter_from_document
from redrive.errors import ConfigurationError, InvalidMessageError, NotFoundError, RedriveError

MAX_LINE_BYTES: Final = 256 * 1024 * 1024
_START: Final = b'{"schema":'
"""What every letter's line begins with."""
_STEP_BYTES: Final = 65_536
MAX_FILES: Final = 10_000
"""Files of one folder that are looked at."""
ERASURES: Final = "erasures.jsonl"
"""The file of the archive folder that records what was erased; no archive."""
MAX_OPENINGS: Final = 5
"""Times a file is opened again because another one was put in its place."""


class Archive:
    """Appends letters to a file. `with Archive(path) as archive:` raises `OSError` where the file cannot be written,
    `ConfigurationError` where another process is writing into it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self._file = open_locked(self._path)
        if self._path.is_file():
            try:
                _mend(self._path)
            except BaseException:
                self._file.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, letters: Sequence[Letter]) -> None:
        """Append these letters; returns when they are on disk. Raises `OSError`: then some may be there, the last one
        cut off; who opens the file next takes that one away.
        """
        assert self._file is not None, "an archive is written inside its with block"
        for letter in letters:
            self._file.write(line_of(letter))
        self._file.flush()
        os.fsync(self._file.fileno())


def open_locked(path: Path) -> BinaryIO:
    """The file, open for appending and ours until it is closed. Raises `OSError`, and `ConfigurationError` where
    another process has it.
    """
    for _ in range(MAX_OPENINGS):
        file = path.open("ab")
        try:
            if not path.is_file():
                return file  # a device, a pipe
            _lock(file, path)
            # Whoever had the lock may have put another file in its place: what is written into the old one is lost.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BaseException:
            file.close()
            raise
        file.close()
    raise _is_taken(path)


def _lock(file: BinaryIO, path: Path) -> None:
    """Until the file is closed. What another one is just writing would look cut off."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _is_taken(path) from error


def _is_taken(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f'"{path}" is being written by another process. Nothing was written and nothing removed.',
        hint="Wait for it, or name another file.",
    )


def _mend(path: Path) -> None:
    """See to it that the file ends where a line begins. Only the torn beginning of a letter is cut off, nothing else:
    the file may be somebody's own.
    """
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        tail = _last_line(file, size)
        if not tail:
            return
        if tail.startswith(_START[: len(tail)]) and not _is_json(tail):
            file.truncate(size - len(tail))
        else:
            file.write(b"\n")


def _last_line(file: BinaryIO, size: int) -> bytes:
    """What stands behind the last line feed."""
    tail = b""
    while b"\n" not in tail and len(tail) < size:
        length = min(_STEP_BYTES, size - len(tail))
        file.seek(size - len(tail) - length)
        tail = file.read(length) + tail
    return tail.rpartition(b"\n")[2]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def line_of(letter: Letter) -> bytes:
    """One letter as a line."""
    return json.dumps(letter_document(letter), separators=(",", ":"), allow_nan=False).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """One file of letters. `unreadable`: lines that are no letter."""

    path: Path
    size_bytes: int
    letters: int
    unreadable: int
    oldest_at: UnixMs | None
    newest_at: UnixMs | None


def archive_files(folder: Path) -> list[Path]:
    """The archives of a folder, by name; at most `MAX_FILES`."""
    return sorted(path for path in folder.glob("*.jsonl") if path.is_file() and path.name != ERASURES)[:MAX_FILES]


def described(path: Path) -> ArchiveFile:
    """What lies in this file, read line by line. Raises `OSError`."""
    count, unreadable = 0, 0
    oldest: UnixMs | None = None
    newest: UnixMs | None = None
    for _, letter in lines_of(path):
        if letter is None:
            unreadable += 1
            continue
        count += 1
        died_at = letter.dead_lettered_at
        oldest = died_at if oldest is None else min(oldest, died_at)
        newest = died_at if newest is None else max(newest, died_at)
    size = path.stat().st_size
    return ArchiveFile(
        path=path, size_bytes=size, letters=count, unreadable=unreadable, oldest_at=oldest, newest_at=newest
    )


def lines_of(path: Path) -> Iterator[tuple[bytes, Letter | None]]:
    """Every line of a file as it is, blank ones aside, with the letter it holds; None: it is none that can be read."""
    return ((line, letter) for _, line, letter in numbered_lines_of(path))


def numbered_lines_of(path: Path) -> Iterator[tuple[int, bytes, Letter | None]]:
    """As `lines_of`, each with its number in the file."""
    with path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), 1):
            if not line.strip():
                continue
            try:
                yield number, line, letter_of(line, path.name)
            except RedriveError:
                yield number, line, None


def letters_in(path: Path) -> Iterator[Letter]:
    """The letters of a file, in its order. Raises `NotFoundError`, and `InvalidMessageError` or `SchemaTooNewError`
    naming the line.
    """
    return (letter for _, _, letter in numbered_letters_in(path))


def numbered_letters_in(path: Path) -> Iterator[tuple[int, bytes, Letter]]:
    """As `letters_in`, each with the number of its line and the line."""
    if not path.is_file():
        raise NotFoundError(f'There is no file "{path}".')
    with path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), 1):
            if line.strip():
                yield number, line, letter_of(line, f"{path}:{number}")


def letter_of(line: bytes, where: str) -> Letter:
    """The letter of one line. Raises `InvalidMessageError` or `SchemaTooNewError` that begins with `where`."""
    try:
        document = json.loads(line)
    except ValueError as error:
        hint = (
            ""
            if line.endswith(b"\n")
            else "Was the file copied whole? A letter cut off by a crash is still in its store."
        )
        raise InvalidMessageError(f"{where} is not JSON: {error}.", hint=hint) from error
    if not isinstance(document, dict):
        raise InvalidMessageError(f"{where} is not a letter.")
    try:
        return letter_from_document(document)
    except RedriveError as error:
        raise type(error)(f"{where}: {error.text}", hint=error.hint) from error
