"""What the README of an example says to type works as it is typed."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from redrive.cli.root import app as command_line
from redrive.testing.servers.processes import free_ports
from tests.surfaces.conftest import clean_environment
from tests.systems.conftest import Place
from tests.systems.test_file_pipeline import pdf, picture

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("event_bus", "freeflow", "file_pipeline")
PATIENCE_S = 60.0
FAST = {
    "BUS_RETRY_DELAY_MS": "20",
    "FREEFLOW_TIME_SCALE": "0.001",
    "PIPELINE_RETRY_DELAY_MS": "20",
}


def commands(name: str) -> list[str]:
    """The commands in the README's shell blocks, in order, without their comments."""
    text = (ROOT / "examples" / name / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    joined = "".join(blocks).replace("\\\n", " ")
    return [line.partition("   #")[0].strip() for line in joined.splitlines() if line.strip()]


def every_redrive_command() -> list[tuple[str, str]]:
    names = (*NAMES, "email_gateway")  # whose story has a test of its own
    return [(name, line) for name in names for line in commands(name) if line.startswith("redrive ")]


@pytest.mark.parametrize(("name", "line"), every_redrive_command())
def test_every_command_parses(name: str, line: str) -> None:
    found: Any = typer.main.get_command(command_line)
    words = shlex.split(line.partition(" > ")[0])[1:]
    path = "redrive"
    while hasattr(found, "commands"):
        assert words[0] in found.commands, f"{name}: {path} has no command {words[0]}"
        path, found, words = f"{path} {words[0]}", found.commands[words[0]], words[1:]

    assert path == found.make_context(path, list(words)).info_name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_story_works_as_it_is_typed(name: str, place: Place, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    environment = {
        **place.environment,
        **FAST,
        "LABELS_URL": f"http://127.0.0.1:{port}/labels",
        "REDRIVE_PORT": str(port),
    }
    (tmp_path / "picture.png").write_bytes(picture())
    (tmp_path / "report.pdf").write_bytes(pdf("numbers"))
    (tmp_path / "mail").mkdir()
    story = [line for line in commands(name) if line.startswith(("redrive publish", "redrive dlq", "curl"))]
    if place.rabbit is None:
        story = [line for line in story if "--in-place" not in line]
    else:
        management = shlex.quote(place.rabbit.management_url)
        story = [line.replace("--in-place", f"--in-place --management {management}") for line in story]

    with started(name, environment, tmp_path, port=port):
        ran = [run(line.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), environment, tmp_path) for line in story]

    assert len(ran) >= 3
    assert [] == [done.args[2] + done.stderr.decode() for done in ran if done.returncode]


def run(line: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    """One command, as a shell in the repository's root would run it."""
    if line.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    if line.startswith("redrive "):
        line = f"{shlex.quote(sys.executable)} -m redrive.cli {line.removeprefix('redrive ')}"
    state = str(folder / "state")
    variables = clean_environment(PYTHONPATH=str(ROOT), XDG_STATE_HOME=state, **environment)
    shell = ["/bin/sh", "-c", line]
    return subprocess.run(shell, cwd=folder, env=variables, capture_output=True, timeout=PATIENCE_S, check=False)


@contextmanager
def started(name: str, environment: dict[str, str], folder: Path, *, port: int) -> Iterator[None]:
    """`python -m examples.<name>`, from when it works until it has drained."""
    log = folder / "system.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", f"examples.{name}"],
            cwd=folder,
            env=clean_environment(PYTHONPATH=str(ROOT), REDRIVE_LOG_FORMAT="json", **environment),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until_it_works(process, log, port=None if name in ("freeflow", "email_gateway") else port)
        yield
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(PATIENCE_S), log.read_text()
    finally:
        process.kill()
        process.wait()


def wait_until_it_works(process: subprocess.Popen[bytes], log: Path, *, port: int | None) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        if "worker.started" in log.read_text() and (port is None or answers(port)):
            return
        time.sleep(0.05)  # sleep: another process starts
    raise AssertionError(log.read_text())


def answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
