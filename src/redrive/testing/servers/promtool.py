"""Prometheus' own checker of rule files, for the test that holds our rules to it: the system's, or one in the cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

PACKAGE: Final = "prometheus"
"""The Debian package that brings it. Nothing of it is installed: the program is taken out into a folder."""

_VARIABLE: Final = "REDRIVE_TEST_PROMTOOL"
_PROGRAM: Final = Path("usr/bin/promtool")


def promtool_folder() -> Path:
    """Where the unpacked package lies: `redrive/prometheus` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "redrive" / "prometheus"


def installed_promtool() -> Path | None:
    """The program: what `REDRIVE_TEST_PROMTOOL` names, else the one on the PATH, else the cache's."""
    chosen = os.environ.get(_VARIABLE) or shutil.which("promtool")
    if chosen:
        return Path(chosen)
    unpacked = promtool_folder() / _PROGRAM
    return unpacked if unpacked.exists() else None
