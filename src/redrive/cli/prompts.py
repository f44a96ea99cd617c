"""Asking before something is changed, and showing how far it is."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import typer

from redrive.cli.output import note, safe
from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_SECONDS: Final = 1.0
"""Whatever ends sooner shows no bar."""


def confirm(question: str, *, yes: bool) -> None:
    """Return when the person agrees. Raises `typer.Exit(1)` when not; without a terminal to ask on, and without
    `--yes`, raises `ConfigurationError`: a script must say that it means it.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{question} There is no terminal to ask on, so nothing was changed.",
            hint="Say --yes to do it, --dry-run to see what it would do.",
        )
    sys.stderr.write(f"{safe(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("Nothing was changed.")
        raise typer.Exit(1)


class Bar:
    """A progress bar on standard error, from the second on that the work has taken; none where that is no terminal.

    `total` None shows a count without an end.
    """

    def __init__(self, text: str, *, total: int | None = None, is_quiet: bool = False) -> None:
        self._text = text
        self._total = total
        self._started = time.monotonic()
        self._is_shown = sys.stderr.isatty() and not is_quiet
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show that `done` of the total are done; `total` corrects the total."""
        self._total = self._total if total is None else total
        if not self._is_shown or time.monotonic() - self._started < QUIET_SECONDS:
            return
        if self._progress is None:
            self._progress = _progress()
            self._task = self._progress.add_task(self._text, total=self._total)
            self._progress.start()
        self._progress.update(self._task, completed=done, total=self._total)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
