"""The tutorial, typed in by a machine: every file is written, every command run, every shown line looked for."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, Page

PATIENCE_S = 120.0
"""Only a failing test ever waits this long."""

TUTORIALS = [Page(path) for path in sorted((ROOT / "docs" / "tutorial").glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=str)
def test_the_tutorial_works_as_written(page: Page, tmp_path: Path) -> None:
    for block in page.blocks("python", "console"):
        if block.language == "python":
            _write(block, tmp_path)
        else:
            _type_in(block, tmp_path, where=f"{page}:{block.line}")


def _write(block: Block, folder: Path) -> None:
    named = re.match(r"# file: (\S+)\n", block.text)
    if named:
        (folder / named[1]).write_text(block.text, "utf-8")


def _type_in(block: Block, folder: Path, *, where: str) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        if worker := re.match(r"timeout .*? \d+ (redrive work .*)", command):
            _work_until_nothing_waits(worker[1], folder)
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{where}: {command}\n{printed}"
        _compare(shown, done.stdout, f"{where}: {command}\n{printed}")


def _work_until_nothing_waits(command: str, folder: Path) -> None:
    """The page says "for a few seconds, then press Ctrl-C". How many, depends on the machine."""
    log = folder / "worker.log"
    with log.open("wb") as out:
        worker = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=_environment(), stdout=out, stderr=subprocess.STDOUT
        )
    try:
        limit = time.monotonic() + PATIENCE_S
        while "Worker started" not in log.read_text() or _waits(folder):
            assert worker.poll() is None, log.read_text()
            assert time.monotonic() < limit, log.read_text()
        worker.send_signal(signal.SIGINT)
        assert 0 == worker.wait(PATIENCE_S), log.read_text()
    finally:
        worker.kill()
        worker.wait()


def _waits(folder: Path) -> bool:
    asked = ["redrive", "queues", "list", "--app", "orders:app", "--json"]
    done = subprocess.run(asked, cwd=folder, env=_environment(), capture_output=True, check=True, timeout=PATIENCE_S)
    return any(queue["ready"] + queue["scheduled"] + queue["leased"] for queue in json.loads(done.stdout)["queues"])


def _compare(shown: str, printed: str, story: str) -> None:
    """Every shown line is printed, in order; `...` stands for anything."""
    rest = printed
    for line in filter(None, (line.strip() for line in shown.splitlines())):
        pattern = ".*".join(re.escape(piece) for piece in line.split("..."))
        found = re.search(pattern, rest)
        assert found, f"not printed: {line}\n{story}"
        rest = rest[found.end() :]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200", "NO_COLOR": "1"}
