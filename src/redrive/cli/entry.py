"""One run of the command line: parse, carry out, and turn every way it can end into an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer

from redrive.cli.outcome import BROKEN_PIPE, FAILED, INTERRUPTED, OK, UNFORESEEN, WRONG, system_text
from redrive.cli.output import prepare_streams, print_error
from redrive.errors import ConfigurationError, RedriveError

STAYING: Final = frozenset({"up", "work", "serve", "push"})
"""Commands that run until they are told to stop: what broke one of them may not come again, so it is told at once."""

_UsageError: Final[Any] = typer.BadParameter.__base__
_ClickException: Final[Any] = _UsageError.__base__


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; the exit code. Never raises, never prints a traceback for what a user did, and none
    that nobody asked for (`REDRIVE_LOG_LEVEL=debug` asks).
    """
    from redrive.cli.root import app

    prepare_streams()
    is_json = "--json" in arguments
    try:
        code = typer.main.get_command(app).main(args=list(arguments), prog_name="redrive", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except BrokenPipeError:
        return _broken_pipe()
    except OSError as error:
        return _system(error, is_json=is_json)
    except (KeyboardInterrupt, typer.Abort):
        print_error("interrupted", "Interrupted.", is_json=is_json)
        return INTERRUPTED
    except RedriveError as error:
        print_error(error.code, error.text, hint=error.hint, is_json=is_json)
        return WRONG if isinstance(error, ConfigurationError) else FAILED
    except _ClickException as error:
        return _usage(error, is_json=is_json)
    except Exception as error:  # noqa: BLE001 - the last resort: 1 would say "found something", which nobody did
        return _unforeseen(error, arguments, is_json=is_json)


def _usage(error: Any, *, is_json: bool) -> int:
    context = getattr(error, "ctx", None)
    path = "redrive" if context is None else context.command_path
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error.format_message()}\n")
        return WRONG
    print_error("usage", error.format_message(), hint=f"Try: {path} --help", is_json=is_json)
    return WRONG


def _broken_pipe() -> int:
    """Whoever read us has gone (`| head`): say nothing more."""
    _silence()
    return BROKEN_PIPE


def _system(error: OSError, *, is_json: bool) -> int:
    """A file that was named is out of reach: refused. Our own output is: 1 would say "found something"."""
    print_error("system", system_text(error), is_json=is_json)
    _silence()
    return UNFORESEEN if error.filename is None else FAILED


def _unforeseen(error: Exception, arguments: Sequence[str], *, is_json: bool) -> int:
    """A bug, ours or the app's: what it is and where, in one line; the traceback before it where it is wanted."""
    is_shown = os.environ.get("REDRIVE_LOG_LEVEL", "").lower() == "debug" or bool(STAYING.intersection(arguments[:1]))
    if is_shown:
        sys.stderr.write("".join(traceback.format_exception(error)))
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}:{frame.lineno}, in {frame.name})" for frame in last)
    print_error(
        "unforeseen",
        f"Something nobody foresaw: {type(error).__name__}: {error}{where}. "
        "The command stopped there; what it had done by then is done.",
        hint="" if is_shown else "For the traceback run it again with REDRIVE_LOG_LEVEL=debug, and please report it.",
        is_json=is_json,
    )
    return UNFORESEEN


def _silence() -> None:
    """Nothing more goes to standard output, also not what the interpreter flushes at its end."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
