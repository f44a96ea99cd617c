"""Which PostgreSQL this machine has: the programs of the Debian packages, or of the PATH."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = "postgresql"
_DEBIAN: Final = Path("/usr/lib/postgresql")
_USERS: Final = ("postgres", "nobody")
"""Whom a server runs as where we are root: PostgreSQL refuses to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresInstall:
    """One version. `programs`: the folder with `postgres` and `initdb`."""

    version: str
    programs: Path

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def __str__(self) -> str:
        return f"PostgreSQL {self.version}"


def installed_postgres() -> PostgresInstall | None:
    """The newest that can be started here; None where there is none."""
    found = [install for folder in _folders() if (install := _install(folder)) is not None]
    return max(found, key=lambda install: install.major, default=None)


def other_user() -> pwd.struct_passwd | None:
    """Whom the server has to run as; None where it may run as who we are."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in _USERS if name in known)


def _folders() -> list[Path]:
    program = shutil.which("postgres")
    on_path = [Path(program).resolve().parent] if program is not None else []
    return [*on_path, *_DEBIAN.glob("*/bin")]


def _install(folder: Path) -> PostgresInstall | None:
    if not all((folder / name).exists() for name in ("postgres", "initdb")):
        return None
    asked = subprocess.run(  # noqa: S603 - the program found above
        [str(folder / "postgres"), "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    found = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)*)", asked.stdout)
    return None if found is None else PostgresInstall(version=found[1], programs=folder)
