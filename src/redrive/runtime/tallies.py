"""Tallies: how several worker processes are counted as one.

Every worker writes its numbers and whether it is ready into a file of its own, once a second and at its end, under a
new name that is then moved over the old one. Whoever serves the scrape adds the files up. A process that is gone
leaves its counters in the sum for ever (a counter never falls) and none of its states.

Weak spot: what a process counted in the second before `kill -9` is missing from the metrics. No message is.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redrive.runtime.metrics import LabelBounds, Labels, Tally

DIRECTORY: Final = "_REDRIVE_TALLIES"
"""Environment variable that tells a worker where its file goes."""

WRITE_EVERY_S: Final = 1.0
STALE_S: Final = 10.0
"""A live process that has written nothing for so long hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one process says of itself. `obstacles`: why it is not ready, empty where it is."""

    pid: int
    tally: Tally
    obstacles: tuple[str, ...]
    age_s: float


class TallyWriter:
    """Writes this process's report until it is closed; a thread of its own, so that a blocked loop still reports."""

    def __init__(self, directory: Path, tally: Callable[[], Tally], obstacles: Callable[[], Sequence[str]]) -> None:
        self._path = directory / f"{os.getpid()}.json"
        self._tally = tally
        self._obstacles = obstacles
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redrive-tally", daemon=True)

    def start(self) -> None:
        """Write now, and from now on."""
        self._thread.start()

    def close(self) -> None:
        """Write a last time and end."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            is_last = self._closing.is_set()
            with suppress(OSError):
                self._write()
            if is_last:
                return
            self._closing.wait(WRITE_EVERY_S)

    def _write(self) -> None:
        document = {"pid": os.getpid(), "tally": _document(self._tally()), "obstacles": list(self._obstacles())}
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(document), "utf-8")
        part.replace(self._path)


class TallyReader:
    """Adds up what the processes wrote in one directory. Belongs to one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ended = Tally()
        self._bounds = LabelBounds()

    def reports(self) -> list[Report]:
        """The live processes; those that are gone are added to the ended ones and their files removed."""
        found = [report for path in sorted(self._directory.glob("*.json")) if (report := _read(path)) is not None]
        live = []
        for report in found:
            if _is_alive(report.pid):
                live.append(report)
            else:
                self._ended.merge(report.tally.counters())
                self._ended = self._bounds.bound(self._ended)
                (self._directory / f"{report.pid}.json").unlink(missing_ok=True)
        return live

    def tallies(self) -> list[Tally]:
        """The numbers of all processes, those that ended in one."""
        live = [report.tally for report in self.reports()]
        return [self._ended, *live]


def _read(path: Path) -> Report | None:
    try:
        document = json.loads(path.read_text("utf-8"))
        age_s = max(0.0, time.time() - path.stat().st_mtime)
    except (OSError, ValueError):
        return None
    return Report(
        pid=document["pid"],
        tally=_tally(document["tally"]),
        obstacles=tuple(document["obstacles"]),
        age_s=age_s,
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_PARTS: Final = ("numbers", "histograms", "shares")


def _document(tally: Tally) -> dict[str, Any]:
    return {
        part: {name: [[labels, value] for labels, value in series.items()] for name, series in _part(tally, part)}
        for part in _PARTS
    }


def _part(tally: Tally, name: str) -> list[tuple[str, dict[Labels, Any]]]:
    return list(getattr(tally, name).items())


def _tally(document: dict[str, Any]) -> Tally:
    return Tally(
        **{
            part: {name: {tuple(labels): value for labels, value in pairs} for name, pairs in document[part].items()}
            for part in _PARTS
        }
    )
