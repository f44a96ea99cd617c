"""The peers: their versions are pinned in peers.txt and peers-arq.txt, and lie in environments of their own.

An environment is made once for each state of its file, in the user's cache (`redrive/bench`), or in
`REDRIVE_BENCH_FOLDER`. Node's BullMQ is the one the tests use (`python -m redrive.testing.servers` gets it).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.apart import Sides
from redrive.testing.servers.node_install import bullmq_folder, installed_bullmq

HERE: Final = Path(__file__).parent
FILES: Final = {"arq": "peers-arq.txt"}
"""Whose environment it is; all others share one."""
SHARED: Final = "peers.txt"
NODE_MAJOR: Final = 5
SHOWN: Final = ("bullmq", "celery", "dramatiq", "taskiq", "taskiq-redis", "arq", "saq", "rq", "redis", "hiredis")
_INSTALL_S: Final = 600


class NotThere(RuntimeError):
    """A peer that cannot be run on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A Python with some of the peers."""

    python: Path

    def versions(self) -> dict[str, str]:
        """Of what is shown."""
        asked = (
            "import importlib.metadata as m, json; "
            "print(json.dumps({each.name.lower(): each.version for each in m.distributions()}))"
        )
        told: dict[str, str] = json.loads(_run([str(self.python), "-c", asked]))
        return {name: told[name] for name in SHOWN if name in told}


def folder() -> Path:
    """Where the environments lie."""
    chosen = os.environ.get("REDRIVE_BENCH_FOLDER")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "redrive" / "bench"


def environment(name: str, tell: Callable[[str], None]) -> Environment:
    """The one that this contender runs in, made where it is not there. Raises `NotThere`."""
    file = HERE / FILES.get(name, SHARED)
    state = hashlib.sha256(file.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = folder() / f"{file.stem}-{state}"
    if not place.exists():
        tell(f"installing {file.name} into {place}")
        _install(file, place)
    return Environment(python=place / "bin" / "python")


def _install(file: Path, place: Path) -> None:
    """The folder is complete or not there at all: what marks it is its last step."""
    python = str(place / "bin" / "python")
    packages = [line for line in file.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    later = [each for each in packages if each.startswith("bullmq")]
    first = [each for each in packages if each not in later]
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    try:
        _run([sys.executable, "-m", "venv", str(place)])
        _run([*pip, *first])
        if later:
            _run([*pip, "--no-build-isolation", *later])
    except NotThere:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotThere(str(error)) from error
    if done.returncode != 0:
        raise NotThere(f"{' '.join(command[:6])} failed:\n{(done.stdout + done.stderr)[-1_500:]}")
    return done.stdout


def node_sides() -> Sides:
    """How Node's halves are run. Raises `NotThere`."""
    if installed_bullmq(NODE_MAJOR) is None:
        raise NotThere(f"Node's BullMQ {NODE_MAJOR} is not on this machine. Run: python -m redrive.testing.servers")
    modules = bullmq_folder(NODE_MAJOR) / "node_modules"
    return Sides(command=("node", str(HERE / "with_bullmq.js")), environment={"NODE_PATH": str(modules)})


def node_version() -> str:
    """Of Node itself."""
    return _run(["node", "--version"]).strip().removeprefix("v")


def sides_of(name: str, tell: Callable[[str], None]) -> Sides:
    """How the halves of this contender are run. Raises `NotThere`."""
    if name.startswith("redrive"):
        return Sides()
    if name == "bullmq-node":
        return node_sides()
    return Sides(command=(str(environment(name, tell).python), "-m", "bench.side"))
