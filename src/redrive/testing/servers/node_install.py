"""Node's own BullMQ, in two major versions, for tests that stand beside it: got by npm into the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from redrive.testing.servers.processes import ServerFailed

MAJORS: Final = (5, 6)
"""The one before, and the current one."""
_NPM_S: Final = 600


def bullmq_folder(major: int) -> Path:
    """Where it lies: `redrive/node/bullmq-5` in the user's cache, or in `REDRIVE_TEST_NODE_FOLDER`."""
    chosen = os.environ.get("REDRIVE_TEST_NODE_FOLDER")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(chosen) if chosen else cache / "redrive" / "node") / f"bullmq-{major}"


def installed_bullmq(major: int) -> str | None:
    """The version that lies there; None where none does, or there is no Node to run it."""
    package = bullmq_folder(major) / "node_modules" / "bullmq" / "package.json"
    if shutil.which("node") is None or not package.exists():
        return None
    return str(json.loads(package.read_text("utf-8"))["version"])


def install_bullmq(major: int) -> None:
    """Get it. The folder is complete or not there at all. Raises `ServerFailed` with npm's words."""
    folder = bullmq_folder(major)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    (unfinished / "package.json").write_text('{"private": true}\n', "utf-8")
    npm = shutil.which("npm")
    if npm is None:
        raise ServerFailed("npm is not on this machine.")
    done = subprocess.run(  # noqa: S603 - the machine's own npm
        [npm, "install", "--no-audit", "--no-fund", "--silent", f"bullmq@{major}", "ioredis@5"],
        cwd=unfinished, capture_output=True, text=True, check=False, timeout=_NPM_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise ServerFailed(f"npm install failed:\n{(done.stdout + done.stderr)[-2_000:]}")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
