"""`redrive demo`: the tour. Real processes, real HTTP, a service that really fails, and everything comes right.

The gateway and the worker are the commands a user would type, run as child processes on loopback; the failing
service is a server in this process. Nothing here is simulated, and nothing outlives the tour but its database.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from redrive.demo.processes import DemoError
from redrive.demo.story import DATABASE, Story, Summary
from redrive.demo.telling import Teller

__all__ = ["DemoError", "Summary", "run"]

INTERRUPTED: Final = 130
"""As a shell reports a command that Ctrl-C ended."""


def run(*, once: bool = False, as_json: bool = False, directory: Path | None = None) -> int:
    """Tell the story; the exit code (0: everything came out as it should).

    `once` ends after the story, as it also does where the output is no terminal; else the demo stays up until
    Ctrl-C, so that a person can go on with the commands it printed. `as_json` prints one JSON document at the end
    instead of the telling. `directory`: where the database and the logs go; None makes a new temporary one. It is
    kept.
    """
    stays = not (once or as_json) and sys.stdin.isatty() and sys.stdout.isatty()
    place = Path(tempfile.mkdtemp(prefix="redrive-demo-")) if directory is None else directory
    place.mkdir(parents=True, exist_ok=True)
    teller = Teller(quiet=as_json)
    try:
        _refuse_used(place)
        summary = asyncio.run(Story(place.resolve(), teller, environment=os.environ, stays=stays).tell())
    except DemoError as error:
        if as_json:
            print(json.dumps({"ok": False, "error": str(error), "directory": str(place)}))
        else:
            teller.trouble(str(error))
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        teller.farewell(place)
        return 0 if stays else INTERRUPTED
    if as_json:
        print(json.dumps(summary.document(), ensure_ascii=False))
    return 0 if summary.is_complete else 1


def _refuse_used(place: Path) -> None:
    """An earlier tour's events are known to its database: sent again they would be no story."""
    if (place / DATABASE).exists():
        raise DemoError(f'"{place}" holds an earlier tour ({DATABASE}). Nothing was started. Name another directory.')
