"""One half of a run, in a process of its own: `python -m bench.side publish|consume MODULE OPTION`.

The rest comes by the environment: BENCH_URL, BENCH_COUNT, BENCH_FOLDER. The publishing half prints its seconds as JSON.
The consuming half writes down when the first and the last message were in a handler, and goes on until it is ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import work
from bench.measure import Stopwatch, peak_rss_mb

QUEUE: Final = "orders"
PREFETCH: Final = 100

BEGIN: Final = "begin"
END: Final = "end"


def url() -> str:
    """The broker."""
    return os.environ["BENCH_URL"]


def count() -> int:
    """How many messages the run has."""
    return int(os.environ["BENCH_COUNT"])


def folder() -> Path:
    """Where the run's files lie."""
    return Path(os.environ["BENCH_FOLDER"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Wall and CPU seconds for all messages, and the most memory held."""

    wall_s: float
    cpu_s: float
    rss_mb: float


class Marks:
    """Counts what is handled; the first and the last message leave a file with the instant."""

    def __init__(self) -> None:
        self._tally = work.Tally()
        self._count = count()
        self._folder = folder()
        self._has_begun = False

    def handle_text(self, text: str | bytes) -> None:
        """The work of every handler that is given the text."""
        self.handle(json.loads(text))

    def handle(self, order: dict[str, Any]) -> None:
        """The work of every handler that is given the parsed value."""
        if not self._has_begun:
            self._has_begun = True
            self._mark(BEGIN)
        if self._tally.add(order) == self._count:
            self._mark(END)

    def _mark(self, name: str) -> None:
        self.write(self._folder, name, repeats=self._tally.repeats)

    @staticmethod
    def write(folder: Path, name: str, *, repeats: int) -> None:
        """The file `name` with this instant: there whole, or not at all."""
        file = folder / f"{name}.part"
        file.write_text(json.dumps({"at": time.monotonic(), "repeats": repeats}))
        file.rename(folder / name)


def main() -> None:
    """Run the half that is asked for."""
    what, module, option = sys.argv[1:]
    contender = importlib.import_module(module)
    if what == "consume":
        contender.consume(url(), Marks(), option)
        return
    texts = work.texts(count())
    watch = Stopwatch()
    contender.publish(url(), texts, option)
    wall_s, cpu_s = watch.wall_s, watch.cpu_s
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "rss_mb": peak_rss_mb()}))


if __name__ == "__main__":
    main()
