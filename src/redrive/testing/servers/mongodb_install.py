"""The MongoDB server of tests: a FerretDB built from its Go module into the user's cache.

FerretDB speaks MongoDB's wire protocol and keeps its data in SQLite. It is the harder server to be right on: an update
of it looks first and writes then, so that two conditional updates may both win. A real mongod is taken where
`REDRIVE_TEST_MONGODB` names one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from redrive.testing.servers.processes import ServerFailed

VERSION: Final = "1.24.2"
MODULE: Final = "github.com/FerretDB/FerretDB"
_BUILD_S: Final = 900
_VARIABLE: Final = "REDRIVE_TEST_FERRETDB_FOLDER"


def ferretdb_folder() -> Path:
    """Where it lies: `redrive/ferretdb-1.24.2` in the user's cache, or `REDRIVE_TEST_FERRETDB_FOLDER`."""
    chosen = os.environ.get(_VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "redrive" / f"ferretdb-{VERSION}"


def installed_ferretdb() -> Path | None:
    """The program; None where it was not built yet."""
    program = ferretdb_folder() / "ferretdb"
    return program if program.exists() else None


def install_ferretdb() -> None:
    """Build it: a minute or two. The folder is complete or not there at all. Raises `ServerFailed` with Go's words."""
    folder = ferretdb_folder()
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    module = json.loads(_go("mod", "download", "-json", f"{MODULE}@v{VERSION}", folder=unfinished))["Dir"]
    # The program refuses to start without a file that its makers write at each release and leave out of the module.
    source = unfinished / "source"
    shutil.copytree(module, source, copy_function=shutil.copyfile)
    for each in (source, *source.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    (source / "build" / "version" / "version.txt").write_text(f"v{VERSION}\n", "ascii")
    _go("build", "-buildvcs=false", "-o", str(unfinished / "ferretdb"), "./cmd/ferretdb", folder=source)
    shutil.rmtree(source)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def _go(*arguments: str, folder: Path) -> str:
    go = shutil.which("go")
    if go is None:
        raise ServerFailed("Go is not on this machine.")
    done = subprocess.run(  # noqa: S603 - the machine's own Go
        [go, *arguments],
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
        cwd=folder, capture_output=True, text=True, check=False, timeout=_BUILD_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise ServerFailed(f"go {' '.join(arguments)} failed:\n{(done.stdout + done.stderr)[-2_000:]}")
    return done.stdout
