"""One run of one contender on RabbitMQ: a fresh virtual host, a publishing process, then a consuming one.

Consuming is timed from the first message in a handler to the last, so that nobody's start-up counts; the CPU of all its
processes, and of the broker, over the same time. Then the queue must be empty, or the run is not one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.measure import ROOT, TIME_LIMIT_S, Contender, Halves, scratch
from bench.rabbitmq.side import BEGIN, END
from redrive.testing.servers.rabbitmq import RabbitNode

POLL_S: Final = 0.005
LIMIT_S: Final = 120
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Halves):
    """One run on RabbitMQ: CPU seconds of the client in each half, and of the broker while consuming."""

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
        """The broker's, for each message consumed."""
        return self.broker_cpu_s * 1e6 / self.messages


def on_a_vhost(node: RabbitNode, contender: Contender, *, place: Path, messages: int) -> Run:
    """Publish and consume `messages`. Raises RuntimeError where one was lost, or handled twice."""
    with node.vhost() as vhost, scratch(place, contender.name) as folder:
        environment = os.environ | {
            "BENCH_URL": vhost.url,
            "BENCH_COUNT": str(messages),
            "BENCH_FOLDER": str(folder),
            "PYTHONPATH": str(ROOT),
        }
        published = _publish(contender, environment)
        broker = broker_pid(node)
        with _consuming(contender, environment) as consumer:
            before = _mark(consumer, folder / BEGIN)
            cpu_before, broker_before = cpu_s(consumer.pid), cpu_s(broker)
            after = _mark(consumer, folder / END)
            consumed_s, broker_s = cpu_s(consumer.pid) - cpu_before, cpu_s(broker) - broker_before
            rss_mb = _rss_mb(consumer.pid)
            _check_empty(node, vhost.name)
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


def _publish(contender: Contender, environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.rabbitmq.side", "publish", contender.module, contender.option],
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
def _consuming(contender: Contender, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (Path(environment["BENCH_FOLDER"]) / "consumer.log").open("wb") as log:
        consumer = subprocess.Popen(
            [sys.executable, "-m", "bench.rabbitmq.side", "consume", contender.module, contender.option],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield consumer
    except Exception as error:
        said = (Path(environment["BENCH_FOLDER"]) / "consumer.log").read_text(errors="replace")[-3_000:]
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


def _check_empty(node: RabbitNode, vhost: str) -> None:
    deadline = time.monotonic() + 60
    while left := _left(node, vhost):
        if time.monotonic() > deadline:
            raise RuntimeError(f"left behind: {left}")
        time.sleep(0.5)


def _left(node: RabbitNode, vhost: str) -> dict[str, int]:
    """Messages by queue; the broker tells its numbers every few seconds. Control queues of Celery's are its own."""
    queues = node.api("GET", f"/api/queues/{vhost}?disable_stats=false")
    return {
        queue["name"]: queue.get("messages", 0)
        for queue in queues
        if queue.get("messages", 0) and queue.get("durable") and not queue.get("exclusive")
    }


# ------------------------------------------------------------------------------------------------- /proc, Linux only


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all its descendants so far."""
    total = 0.0
    for each in (pid, *_descendants(pid)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split()
            total += sum(int(field) for field in fields[11:13]) / _TICKS_PER_S
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


def broker_pid(node: RabbitNode) -> int:
    """The operating system's id of the Erlang machine. The node tells it some seconds after its start."""
    deadline = time.monotonic() + 60
    while "os_pid" not in (found := node.api("GET", "/api/nodes")[0]):
        if time.monotonic() > deadline:
            raise RuntimeError("the broker does not tell its process id")
        time.sleep(0.1)
    return int(found["os_pid"])
