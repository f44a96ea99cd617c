"""What the demo says, line by line: plain where the output is no terminal, with colour where it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from redrive.runtime.clean import printable


class Teller:
    """Prints the story. Text from outside is never read as markup or as control codes. `quiet` says nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        width = None if sys.stdout.isatty() else 110
        self._console = Console(
            quiet=quiet, highlight=False, width=width, no_color=True if "NO_COLOR" in os.environ else None
        )
        self._errors = Console(stderr=True, highlight=False, no_color=True if "NO_COLOR" in os.environ else None)

    def act(self, title: str) -> None:
        """A new part of the story."""
        self._console.print()
        self._console.print(Text(title, style="bold"))

    def line(self, mark: str, text: str, *, style: str = "") -> None:
        """One thing that happened."""
        self._console.print(Text.assemble("  ", (f"{mark:<10}", style), " ", printable(text)))

    def command(self, typed: str) -> None:
        """A command, ready to be copied: never broken into two lines."""
        self._console.print(Text(f"    {typed}", style="cyan"), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Rows under columns."""
        table = Table(box=None, padding=(0, 2, 0, 2), header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell.strip())) for cell in row))
        self._console.print(table)

    def note(self, text: str) -> None:
        """A sentence beside the story."""
        self._console.print(Text(f"  {text}", style="dim"), soft_wrap=True)

    def trouble(self, text: str) -> None:
        """Why the tour stopped."""
        self._errors.print(Text(text, style="red"), soft_wrap=True)

    def farewell(self, place: Path) -> None:
        """The last words."""
        self._console.print()
        self._console.print(Text(f"Stopped. The database and the logs stay in {place}; remove it when you are done."))
