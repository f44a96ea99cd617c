"""What the README of the mail gateway says to type works as it is typed: the story, and every runbook."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redrive.testing.servers.processes import free_ports
from tests import redis as redis_servers
from tests.surfaces.conftest import clean_environment
from tests.systems.conftest import EMBEDDED
from tests.systems.mail_gateway import on_redis
from tests.systems.test_readmes import PATIENCE_S, ROOT, commands, run, started

NAME = "email_gateway"
RUNBOOKS = ("redrive dlq", "redrive queues", "redrive doctor", "redrive publish")


def place_of(kind: str, folder: Path) -> dict[str, str]:
    """The variables of the gateway, with its files in this folder."""
    embedded = {"REDRIVE_BROKER": f"sqlite:///{folder}/redrive.db"}
    return {
        **(embedded if kind == EMBEDDED else on_redis(redis_servers.empty_server(kind).url, folder)),
        "OUTBOX_FILE": str(folder / "outbox.db"),
        "BASE_DELAY_MS": "20",
    }


@contextmanager
def local_servers(smtp: int, folder: Path) -> Iterator[None]:
    """`python -m examples.email_gateway.local`, once it listens."""
    line = [sys.executable, "-m", f"examples.{NAME}.local", "--smtp", str(smtp), "--ses", "0"]
    log = folder / "local.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            line, cwd=folder, env=clean_environment(PYTHONPATH=str(ROOT)), stdout=out, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + PATIENCE_S
        while "SMTP on port" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)  # sleep: another process starts
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [EMBEDDED, redis_servers.OLD])
def test_the_story_and_every_runbook_work_as_they_are_typed(kind: str, tmp_path: Path) -> None:
    (smtp,) = free_ports(1)
    environment = {**place_of(kind, tmp_path), "SMTP_PORT": str(smtp)}
    typed = commands(NAME)
    added = [line for line in typed if ".outbox add" in line]
    runbooks = [line for line in typed if line.startswith(RUNBOOKS)]
    if kind == EMBEDDED:
        runbooks = [line for line in runbooks if "doctor" not in line]
    assert (3, 10) == (len(added), len(runbooks) + (kind == EMBEDDED))

    with local_servers(smtp, tmp_path), started(NAME, environment, tmp_path, port=0):
        assert [] == failures([*added], environment, tmp_path)
        wait_for(lambda: dead(environment, tmp_path) == 2, "two dead letters")
        wait_for(lambda: outbox(environment, tmp_path).count("SENT") == 1, "one mail sent")
        assert [] == failures(runbooks, environment, tmp_path)

    told = (tmp_path / "local.log").read_text().splitlines()
    assert 2 == sum("anna@example.org" in line for line in told)
    assert (tmp_path / "letters.jsonl").stat().st_size > 0


def failures(lines: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    """What these commands complained about."""
    done = [run(line.replace("python -m", f"{sys.executable} -m"), environment, folder) for line in lines]
    return [f"{each.args[2]}\n{each.stdout.decode()}{each.stderr.decode()}" for each in done if each.returncode]


def dead(environment: dict[str, str], folder: Path) -> int:
    done = run(f"redrive dlq list email:send:dlq --json --app examples.{NAME}:app", environment, folder)
    assert done.returncode == 0, done.stderr
    return len(json.loads(done.stdout)["letters"])


def outbox(environment: dict[str, str], folder: Path) -> str:
    done = run(f"{sys.executable} -m examples.{NAME}.outbox list", environment, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def wait_for(condition: object, what: str) -> None:
    assert callable(condition)
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.1)  # sleep: other processes work


def test_every_variable_of_the_readme_is_one_that_is_read() -> None:
    import re

    text = (ROOT / "examples" / NAME / "README.md").read_text("utf-8")
    table = text.partition("## Settings")[2].partition("## ")[0]
    named = set(re.findall(r"`([A-Z][A-Z0-9_]{4,})`", table))
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "examples" / NAME).glob("*.py"))

    assert {"REDRIVE_MAIL_RULES"} == {name for name in named if name not in sources}
    assert not [name for name in re.findall(r'read\.\w+\("([A-Z_]+)"', sources) if name not in named]
