"""Erasing letters from archive files, and the record that it was done.

A file is rewritten beside itself and put in its own place: killed anywhere, it is the old one or the new one, whole.
What a kill leaves beside it holds nothing that was to be erased, and goes at the next try. Lines that are kept are kept
byte for byte; a line that cannot be read stays, and is counted, because nobody knows whose it is.

The record (`erasures.jsonl` in the archive folder) has two lines for each erasure: *begun*, on disk before anything is
removed, and *done*. It has who, when and how many, and nothing of what was erased nor how it was found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redrive.core.letters.letter import Letter
from redrive.runtime.archive import ERASURES, lines_of, open_locked


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Letters of one file that are meant, and lines nobody can read."""

    letters: int
    unreadable: int


def meant_in(path: Path, is_meant: Callable[[Letter], bool]) -> Found:
    """How many letters of this file are meant. Raises `OSError`."""
    letters = [letter for _, letter in lines_of(path) if letter is None or is_meant(letter)]
    unreadable = letters.count(None)
    return Found(letters=len(letters) - unreadable, unreadable=unreadable)


def erase_from(path: Path, is_meant: Callable[[Letter], bool]) -> int:
    """Rewrite a file without the letters that are meant; how many went. A file without any is left as it is.

    Raises `OSError`, and `ConfigurationError` where another process writes into it: then it is as it was.
    """
    part = path.with_name(f".{path.name}.erasing")
    with open_locked(path):
        gone = 0
        try:
            with part.open("wb") as kept:
                part.chmod(path.stat().st_mode & 0o777)
                for line, letter in lines_of(path):
                    if letter is not None and is_meant(letter):
                        gone += 1
                    else:
                        kept.write(line)
                kept.flush()
                os.fsync(kept.fileno())
            if gone:
                part.replace(path)
                _sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)
    return gone


def record(folder: Path, entry: Mapping[str, Any]) -> None:
    """Append one line to the record; returns when it is on disk. Raises `OSError` or `ConfigurationError`."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_locked(folder / ERASURES) as file:
        file.write(json.dumps(entry).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """A name is on disk once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
