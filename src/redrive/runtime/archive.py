"""Letters as a file of JSON lines: whole, exact, and loaded again by `redrive dlq import`.

One letter a line, as `redrive.core.wire.letter_document` writes it. A file is on disk before anything is removed
because of it; a line cut off by a crash is the last one and belongs to letters that were not removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from redrive.core.letters.letter import Letter
from redrive.core.wire import letter_document, letter_from_document
from redrive.errors import InvalidMessageError, NotFoundError, RedriveError

MAX_LINE_BYTES: Final = 256 * 1024 * 1024


class Archive:
    """Appends letters to a file. `with Archive(path) as archive:` raises `OSError` where the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self._file = self._path.open("ab")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, letters: Sequence[Letter]) -> None:
        """Append these letters; returns when they are on disk."""
        assert self._file is not None, "an archive is written inside its with block"
        for letter in letters:
            self._file.write(line_of(letter))
        self._file.flush()
        os.fsync(self._file.fileno())


def line_of(letter: Letter) -> bytes:
    """One letter as a line."""
    return json.dumps(letter_document(letter), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def letters_in(path: Path) -> Iterator[Letter]:
    """The letters of a file, in its order. Raises `NotFoundError`, and `InvalidMessageError` or `SchemaTooNewError`
    naming the line.
    """
    if not path.is_file():
        raise NotFoundError(f'There is no file "{path}".')
    with path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), 1):
            if line.strip():
                yield _letter(line, f"{path}:{number}")


def _letter(line: bytes, where: str) -> Letter:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise InvalidMessageError(f"{where} is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise InvalidMessageError(f"{where} is not a letter.")
    try:
        return letter_from_document(document)
    except RedriveError as error:
        raise type(error)(f"{where}: {error.text}", hint=error.hint) from error
