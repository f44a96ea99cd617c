"""What one run of one contender yields, and how a contender is run: alone, in a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench import work

ROOT: Final = Path(__file__).resolve().parent.parent
TIME_LIMIT_S: Final = 600

SYNCHRONOUS: Final = {0: "off", 1: "normal", 2: "full", 3: "extra"}
"""SQLite's names for `PRAGMA synchronous`: full means an fsync before every commit returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """One run of any kind: how many messages, and the seconds to publish and to consume them all."""

    messages: int
    publish_s: float
    consume_s: float
    rss_mb: float

    @property
    def publish_per_s(self) -> float:
        """Messages a second while publishing."""
        return self.messages / self.publish_s

    @property
    def consume_per_s(self) -> float:
        """Messages a second while consuming."""
        return self.messages / self.consume_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Halves):
    """One run here: CPU seconds of both halves, and what SQLite was told."""

    cpu_s: float
    synchronous: str

    @property
    def both_per_s(self) -> float:
        """Messages a second through publish and consume, one after the other."""
        return self.messages / (self.publish_s + self.consume_s)

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds a message, publish and consume together."""
        return self.cpu_s * 1_000 / self.messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One thing to measure. `module` has `run(path, texts) -> Run`; `rate` is a guess used to size the run."""

    name: str
    title: str
    module: str
    option: str = ""
    rate: int


class Stopwatch:
    """Wall and CPU seconds of this process (children included) since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_s()

    @property
    def wall_s(self) -> float:
        """Seconds gone by."""
        return time.perf_counter() - self._wall

    @property
    def cpu_s(self) -> float:
        """CPU seconds used."""
        return _cpu_s() - self._cpu


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def peak_rss_mb() -> float:
    """The most memory this process has held, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


@contextmanager
def scratch(folder: Path, name: str) -> Iterator[Path]:
    """A fresh folder for one run's file, removed afterwards."""
    place = folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}"
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        place.rmdir()


def in_a_process(contender: Contender, *, folder: Path, messages: int) -> Run:
    """Run the contender in a process of its own, so that nothing of it leaks into the next."""
    with scratch(folder, contender.name) as place:
        answer = python("bench.measure", contender.module, contender.option, str(place), str(messages))
    return Run(**answer)


def python(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of this package, returning the JSON object on the last line it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def main() -> None:
    """The other side of `in_a_process`: module, option, folder and count as arguments; the run as JSON."""
    module, option, place, messages = sys.argv[1:]
    run: Callable[..., Run] = importlib.import_module(module).run
    print(json.dumps(asdict(run(Path(place), work.texts(int(messages)), option))))


if __name__ == "__main__":
    main()
