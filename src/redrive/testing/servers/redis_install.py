"""Which Redis servers this machine has: the system's own, and a Valkey 8 unpacked into a folder of its own.

Two are looked for. The system's: `redis-server` on the PATH. And a newer one in a folder that holds a small Debian of a
later release (`valkey_8_folder`), which runs with chroot and therefore needs root. `python -m redrive.testing.servers`
gets what is missing where that is possible.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NEWER_FOLDER_VARIABLE: Final = "REDRIVE_TEST_VALKEY_8_FOLDER"
_NEWER_PROGRAM: Final = Path("usr/bin/valkey-server")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisInstall:
    """One server program. `root` is the folder it sees as `/`; `None`: the machine's own."""

    name: str
    version: str
    program: Path
    root: Path | None = None

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def valkey_8_folder() -> Path:
    """Where a Valkey 8 lies: `REDRIVE_TEST_VALKEY_8_FOLDER`, or `redrive/valkey-8` in the user's cache."""
    chosen = os.environ.get(_NEWER_FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "redrive" / "valkey-8"


def installed_redis() -> tuple[RedisInstall, ...]:
    """Every server that can be started here, oldest first; empty where there is none."""
    found = [install for install in (_of_the_system(), _in_a_folder(valkey_8_folder())) if install is not None]
    return tuple(sorted(found, key=lambda install: install.major))


def _of_the_system() -> RedisInstall | None:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    return None if program is None else _install(Path(program), root=None)


def _in_a_folder(root: Path) -> RedisInstall | None:
    if os.geteuid() != 0 or not (root / _NEWER_PROGRAM).exists():
        return None
    return _install(Path("/") / _NEWER_PROGRAM, root=root)


def _install(program: Path, *, root: Path | None) -> RedisInstall | None:
    chroot = [] if root is None else ["chroot", str(root)]
    asked = subprocess.run(  # noqa: S603 - the program found above
        [*chroot, str(program), "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    found = re.search(r"^(\w+) server v=(\d+\.\d+\.\d+)", asked.stdout)
    if found is None:
        return None
    return RedisInstall(name=found[1].capitalize(), version=found[2], program=program, root=root)
