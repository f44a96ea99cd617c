"""One run of one contender on a server: a publishing process, then a consuming one, each of its own.

Consuming is timed from the first message in a handler to the last, so that nobody's start-up counts; the CPU of all its
processes, and of the server, over the same time. Then nothing may be left on the server, or the run is not one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.measure import ROOT, TIME_LIMIT_S, Contender, Halves
from bench.side import BEGIN, END

POLL_S: Final = 0.005
LIMIT_S: Final = 120
EMPTY_S: Final = 60
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Halves):
    """One run on a server: CPU seconds of the client in each half, and of the server while consuming."""

    publish_cpu_s: float
    consume_cpu_s: float
    broker_cpu_s: float

    @property
    def publish_cpu_us(self) -> float:
        """The client's CPU microseconds for each message sent."""
        return self.publish_cpu_s * 1e6 / self.messages

    @property
    def consume_cpu_us(self) -> float:
        """The client's CPU microseconds for each message consumed."""
        return self.consume_cpu_s * 1e6 / self.messages

    @property
    def broker_cpu_us(self) -> float:
        """The server's, for each message consumed."""
        return self.broker_cpu_s * 1e6 / self.messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What runs a contender's two halves: a command to which `publish` or `consume`, its module and its option are
    added.
    """

    command: Sequence[str] = (sys.executable, "-m", "bench.side")
    environment: Mapping[str, str] = field(default_factory=dict)

    def of(self, contender: Contender, what: str) -> list[str]:
        """The command of one half."""
        return [*self.command, what, contender.module, contender.option]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run takes place: the server's URL and process, a folder for files, and what is left on the server by
    name, asked after the run until it is nothing.
    """

    url: str
    pid: Callable[[], int]
    folder: Path
    left: Callable[[], Mapping[str, int]]


def run(contender: Contender, place: Place, *, messages: int, sides: Sides) -> Run:
    """Publish and consume `messages`. Raises RuntimeError where one was lost, left behind or handled twice."""
    environment = environment_of(sides.environment) | {
        "BENCH_URL": place.url,
        "BENCH_COUNT": str(messages),
        "BENCH_FOLDER": str(place.folder),
    }
    published = _publish(contender, sides, environment)
    broker = place.pid()
    with _consuming(contender, sides, environment) as consumer:
        before = _mark(consumer, place.folder / BEGIN)
        cpu_before, broker_before = cpu_s(consumer.pid), cpu_s(broker)
        after = _mark(consumer, place.folder / END)
        consumed_s, broker_s = cpu_s(consumer.pid) - cpu_before, cpu_s(broker) - broker_before
        rss_mb = _rss_mb(consumer.pid)
        _check_empty(place)
    if after["repeats"]:
        raise RuntimeError(f"{contender.name} handled {after['repeats']} messages twice")
    return Run(
        messages=messages,
        publish_s=published["wall_s"],
        publish_cpu_s=published["cpu_s"],
        consume_s=after["at"] - before["at"],
        consume_cpu_s=consumed_s,
        broker_cpu_s=broker_s,
        rss_mb=rss_mb,
    )


def environment_of(more: Mapping[str, str]) -> dict[str, str]:
    """This process's own, with this bench importable and what else is given."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path} | more


def _publish(contender: Contender, sides: Sides, environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        sides.of(contender, "publish"),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{contender.name} could not publish:\n{done.stdout}{done.stderr}")
    published: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return published


@contextlib.contextmanager
def _consuming(contender: Contender, sides: Sides, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    log_file = Path(environment["BENCH_FOLDER"]) / "consumer.log"
    with log_file.open("wb") as log:
        consumer = subprocess.Popen(
            sides.of(contender, "consume"),
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield consumer
    except Exception as error:
        said = log_file.read_text(errors="replace")[-3_000:]
        raise RuntimeError(f"{contender.name}: {error}\n{said}") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(consumer.pid, signal.SIGKILL)
        consumer.wait()


def _mark(consumer: subprocess.Popen[bytes], file: Path) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT_S
    while not file.exists():
        if consumer.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {file.name} of it")
        time.sleep(POLL_S)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _check_empty(place: Place) -> None:
    deadline = time.monotonic() + EMPTY_S
    while left := place.left():
        if time.monotonic() > deadline:
            raise RuntimeError(f"left behind: {left}")
        time.sleep(0.1)


# ------------------------------------------------------------------------------------------------- /proc, Linux only


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all its descendants so far."""
    total = 0.0
    for each in (pid, *_descendants(pid)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split()
            total += sum(int(number) for number in fields[11:13]) / _TICKS_PER_S
    return total


def _rss_mb(pid: int) -> float:
    total = 0.0
    for each in (pid, *_descendants(pid)):
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return total


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return [each for child in found for each in (child, *_descendants(child))]
