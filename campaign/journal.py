"""The journal: what handlers did, one line each, written so that it survives the writer's death.

A line is one `write` to a file opened for appending: after `kill -9` the kernel still has it, and lines of several
processes never mix. It is the campaign's only witness besides the file under test.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

START: Final = "start"
"""A handler began."""
EFFECT: Final = "effect"
"""Its effect happened; its message may or may not have been settled after that."""
CONFIRMED: Final = "confirmed"
"""A sender was told that a message is durable: from here on it may not be lost."""


@dataclass(frozen=True, slots=True)
class Line:
    """One entry. `at` is monotonic seconds, the same clock in all processes of one machine."""

    kind: str
    queue: str
    key: str
    attempt: int
    pid: int
    at: float


class Journal:
    """A file of lines, appended to by any number of processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        # What was read already: who waits asks again and again.
        self._read: list[Line] = []
        self._read_bytes = 0

    def write(self, kind: str, queue: str, key: str, *, attempt: int = 0) -> None:
        """Add a line."""
        self.write_all(kind, queue, [key], attempt=attempt)

    def write_all(self, kind: str, queue: str, keys: Iterable[str], *, attempt: int = 0) -> None:
        """Add one line a key, with one write."""
        end = f"{attempt}\t{os.getpid()}\t{time.monotonic():.6f}\n"
        os.write(self._handle, "".join(f"{kind}\t{queue}\t{key}\t{end}" for key in keys).encode())

    def lines(self) -> list[Line]:
        """All whole lines so far."""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self._read += [_line(row) for row in whole.decode().splitlines()]
        return list(self._read)

    def of(self, kind: str, queue: str) -> dict[str, list[Line]]:
        """Lines of one kind and queue by key, each in the order written."""
        found: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines():
            if (line.kind, line.queue) == (kind, queue):
                found[line.key].append(line)
        return found


def _line(row: str) -> Line:
    kind, queue, key, attempt, pid, at = row.split("\t")
    return Line(kind, queue, key, int(attempt), int(pid), float(at))
