"""How a command ends: its exit codes, and what is said where it could not do its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import typer

from redrive.cli.output import print_error
from redrive.errors import RedriveError

Result = TypeVar("Result")

OK: Final = 0
FAILED: Final = 1
"""Something failed or was refused."""
FOUND: Final = 1
"""Of commands that look for something: they found it (`doctor`, `alerts`, `topology`)."""
WRONG: Final = 2
"""The command or the configuration is wrong; of commands that look for something: they could not look."""
UNFORESEEN: Final = 70
"""Something nobody foresaw: a bug, or an output that cannot be written. EX_SOFTWARE of sysexits.h."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""As a shell reports a process that SIGPIPE ended."""


def carried_out(action: Callable[[], Result], *, is_json: bool) -> Result:
    """What the action returns, for commands whose 1 says "found something": every failure of it ends with `WRONG`."""
    try:
        return action()
    except BrokenPipeError:
        raise
    except OSError as error:
        print_error("system", system_text(error), is_json=is_json)
        raise typer.Exit(WRONG) from error
    except RedriveError as error:
        print_error(error.code, error.text, hint=error.hint, is_json=is_json)
        raise typer.Exit(WRONG) from error


def system_text(error: OSError) -> str:
    """The system refused something of ours: standard output is on a full disk, a file is out of reach."""
    what = "the output" if error.filename is None else f'"{error.filename}"'
    return f"The system refused {what}: {error.strerror or error}."
