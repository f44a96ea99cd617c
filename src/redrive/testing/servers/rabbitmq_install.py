"""Which RabbitMQ servers this machine has: the system's own, and newer ones unpacked into a folder of their own.

Two are looked for. The system's: the Debian package, Homebrew, or `rabbitmq-server` on the PATH. And a newer one in a
folder that holds a small Debian of a later release (`rabbitmq_4_folder`), which runs with chroot and therefore needs
root. `python -m redrive.testing.servers` gets what is missing where that is possible.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROGRAM_FOLDERS: Final = (
    "/usr/lib/rabbitmq/bin",  # Debian, Ubuntu: without the wrapper that changes the user
    "/opt/homebrew/sbin",
    "/usr/local/sbin",
    "/opt/rabbitmq/sbin",
)
_NEWER_FOLDER_VARIABLE: Final = "REDRIVE_TEST_RABBITMQ_4_FOLDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """The programs of one RabbitMQ version. `root` is the folder they see as `/`; `None`: the machine's own."""

    version: str
    programs: Path
    root: Path | None = None

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def __str__(self) -> str:
        return f"RabbitMQ {self.version}"


def rabbitmq_4_folder() -> Path:
    """Where a newer RabbitMQ lies: `REDRIVE_TEST_RABBITMQ_4_FOLDER`, or `redrive/rabbitmq-4` in the user's cache."""
    chosen = os.environ.get(_NEWER_FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "redrive" / "rabbitmq-4"


def installed() -> tuple[Install, ...]:
    """Every RabbitMQ that can be started here, oldest first; empty where there is none."""
    found = [install for install in (_of_the_system(), _in_a_folder(rabbitmq_4_folder())) if install is not None]
    return tuple(sorted(found, key=lambda install: [int(part) for part in re.findall(r"\d+", install.version)]))


def _of_the_system() -> Install | None:
    on_path = shutil.which("rabbitmq-server")
    folders = [Path(folder) for folder in _PROGRAM_FOLDERS] + ([Path(on_path).parent] if on_path else [])
    for programs in folders:
        if (programs / "rabbitmq-server").exists() and shutil.which("erl"):
            return Install(version=_version(programs.resolve()), programs=programs)
    return None


def _in_a_folder(root: Path) -> Install | None:
    programs = root / "usr" / "lib" / "rabbitmq" / "bin"
    if not (programs / "rabbitmq-server").exists() or os.geteuid() != 0:
        return None
    return Install(version=_version(programs), programs=Path("/usr/lib/rabbitmq/bin"), root=root)


def _version(programs: Path) -> str:
    """From the name of the server's folder, where it says so; else the server's own tool is asked (a second)."""
    for folder in (*programs.parent.glob("lib/rabbitmq_server-*"), programs.parent):
        _, _, version = folder.name.partition("rabbitmq_server-")
        if version:
            return version
    asked = subprocess.run(  # noqa: S603 - the program found above
        [programs / "rabbitmqctl", "version"], capture_output=True, text=True, check=True, timeout=60
    )
    return asked.stdout.strip()
