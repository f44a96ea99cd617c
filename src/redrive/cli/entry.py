"""One run of the command line: parse, carry out, and turn every way it can end into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import typer

from redrive.cli.output import prepare_streams, print_error
from redrive.errors import ConfigurationError, RedriveError

OK: Final = 0
FAILED: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""As a shell reports a process that SIGPIPE ended."""

_UsageError: Final[Any] = typer.BadParameter.__base__
_ClickException: Final[Any] = _UsageError.__base__


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; the exit code. Never raises, never prints a traceback for what a user did."""
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
    """The system refused something of ours: standard output is on a full disk, a file is out of reach."""
    what = "the output" if error.filename is None else f'"{error.filename}"'
    print_error("system", f"The system refused {what}: {error.strerror or error}.", is_json=is_json)
    _silence()
    return FAILED


def _silence() -> None:
    """Nothing more goes to standard output, also not what the interpreter flushes at its end."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
