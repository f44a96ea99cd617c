"""`redrive demo`: the whole story by real processes over real HTTP, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive.demo.story import FAST_POLICY

COMMAND = [sys.executable, "-c", "from redrive.cli import main; main()", "demo"]
WAIT_S = 240.0
"""For a story of fifteen seconds, on a machine that has other things to do."""

# The told story is one of ten seconds: all that is asked of it is asked in one process.
pytestmark = pytest.mark.xdist_group("courier-demo")


def play(*options: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], cwd=root, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.fixture(scope="module")
def told(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    place = tmp_path_factory.mktemp("demo")
    return play("--once", "--json", "--directory", str(place), root=root), place


@pytest.fixture(scope="module")
def summary(told: tuple[subprocess.CompletedProcess[str], Path]) -> dict[str, Any]:
    done, _ = told
    assert 0 == done.returncode, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def events(place: Path, child: str) -> list[dict[str, Any]]:
    lines = (place / f"{child}.log").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_signed_webhooks_are_accepted_once_and_forged_ones_refused(summary: dict[str, Any]) -> None:
    assert summary["ok"] is True
    assert 7 == len(summary["accepted"]) == len(set(summary["accepted"]))
    assert 1 == summary["duplicates"]
    assert {"signature_mismatch": 401} == summary["refused"]


def test_what_failed_while_the_service_was_down_was_retried_then_processed(summary: dict[str, Any]) -> None:
    assert ["evt-1001", "evt-1002", "evt-1003"] == sorted(summary["recovered"])
    assert all(summary["retries"][event] >= 1 for event in summary["recovered"])


def test_what_kept_failing_is_dead_with_its_reason(summary: dict[str, Any]) -> None:
    reasons = {event: (dead["reasonCode"], dead["attempts"]) for event, dead in summary["dead"].items()}

    assert ("DOWNSTREAM_TIMEOUT_EXHAUSTED", 5) == reasons["evt-2001"]
    assert ("INVALID_RESPONSE_EXHAUSTED", 5) == reasons["evt-2002"]
    assert ("DOWNSTREAM_UNAVAILABLE_EXHAUSTED", 5) == reasons["evt-2003"]
    assert ("VALIDATION_FAILED", 1) == reasons["evt-2004"]
    assert all(dead["reasonText"].strip() for dead in summary["dead"].values())


def test_after_the_redrive_everything_accepted_was_processed_exactly_once(summary: dict[str, Any]) -> None:
    assert 4 == summary["redriven"]
    assert sorted(summary["accepted"]) == summary["processed"]


def test_it_waits_for_itself_less_than_forty_seconds(summary: dict[str, Any]) -> None:
    """Whatever the machine adds: the longest chain is the event whose service hangs through all five attempts."""
    backoff_ms, timeout_ms = (int(FAST_POLICY[name]) for name in ("RETRY_BACKOFF_BASE_MS", "DOWNSTREAM_TIMEOUT_MS"))

    assert 5 * timeout_ms + 1.2 * backoff_ms * (1 + 2 + 4 + 8) <= 20_000
    assert 0 < summary["took_s"] < WAIT_S


def test_it_was_real_processes_that_did_it(
    told: tuple[subprocess.CompletedProcess[str], Path], summary: dict[str, Any]
) -> None:
    _, place = told
    accepted = [event for event in events(place, "gateway") if event["event"] == "ingest.accepted"]
    [started] = [event for event in events(place, "worker") if event["event"] == "worker.started"]
    dead = [event for event in events(place, "worker") if event["event"] == "delivery.dead_lettered"]

    assert summary["accepted"] == [event["key"].partition(":")[2] for event in accepted if not event["duplicate"]]
    assert started["pid"] != os.getpid()
    assert {entry["letterId"] for entry in summary["dead"].values()} == {event["letter_id"] for event in dead}


def test_both_processes_drained_and_ended(told: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, place = told
    [started] = [event for event in events(place, "worker") if event["event"] == "worker.started"]

    assert "worker.stopped" in [event["event"] for event in events(place, "worker")]
    assert is_gone(started["pid"])


def test_at_a_terminal_it_stays_until_ctrl_c_and_the_commands_it_prints_work(tmp_path: Path) -> None:
    """Outside of the repository: the example comes with the installation, or from where the sources are."""
    place = tmp_path / "a place"
    with Terminal([*COMMAND, "--directory", str(place)], cwd=tmp_path) as demo:
        demo.read_until("/metrics")
        listing = demo.commands("redrive dlq list")
        listed = subprocess.run(
            [*COMMAND[:-1], *listing, "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        [started] = [event for event in events(place, "worker") if event["event"] == "worker.started"]
        demo.process.send_signal(signal.SIGINT)
        demo.read_until("Stopped.")
        code = demo.process.wait(WAIT_S)

    assert 0 == code
    assert 4 == len(json.loads(listed.stdout)["letters"])
    assert is_gone(started["pid"])
    for part in ("accepted", "duplicate", "retry", "dead", "processed", "What to try next"):
        assert part in demo.text
    assert "COURIER_SECRETS" not in demo.text
    assert "Traceback" not in demo.text


class Terminal:
    """A process at a pseudo-terminal, and what it wrote there."""

    def __init__(self, command: list[str], *, cwd: Path) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"}
        self.process = subprocess.Popen(command, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.text = ""

    def read_until(self, wanted: str) -> None:
        limit = time.monotonic() + WAIT_S
        while wanted not in self.text:
            assert time.monotonic() < limit, self.text
            if select.select([self._master], [], [], 1)[0]:
                try:
                    self.text += os.read(self._master, 65_536).decode("utf-8", "replace")
                except OSError:
                    raise AssertionError(f"it ended before {wanted!r}:\n{self.text}") from None

    def commands(self, beginning: str) -> list[str]:
        [line] = [line.strip() for line in self.text.splitlines() if line.strip().startswith(beginning)]
        return shlex.split(line)[1:]

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_in_the_middle_leaves_no_process_behind(
    root: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    demo = subprocess.Popen([*COMMAND, "--once", "--directory", str(tmp_path)], cwd=root, stdout=subprocess.DEVNULL)
    try:
        await_true(lambda: any(event["event"] == "worker.started" for event in _events_so_far(tmp_path)))
        [started] = [event for event in _events_so_far(tmp_path) if event["event"] == "worker.started"]

        demo.send_signal(number)

        assert code == demo.wait(WAIT_S)
        await_true(lambda: is_gone(started["pid"]))
    finally:
        demo.kill()
        demo.wait()


def test_where_a_child_cannot_start_the_reason_is_told(root: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--once", "--directory", str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "RETRY_MAX_ATTEMPTS": "0"},
    )

    assert 1 == done.returncode
    assert "RETRY_MAX_ATTEMPTS is '0'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_with_an_earlier_tour_is_refused_before_anything_starts(root: Path, tmp_path: Path) -> None:
    (tmp_path / "courier.db").touch()

    done = play("--once", "--json", "--directory", str(tmp_path), root=root)

    assert 1 == done.returncode
    assert "earlier tour" in json.loads(done.stdout)["error"]
    assert ["courier.db"] == [entry.name for entry in tmp_path.iterdir()]


def _events_so_far(place: Path) -> list[dict[str, Any]]:
    return events(place, "worker") if (place / "worker.log").exists() else []


def await_true(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)  # sleep: until it is looked at again


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
