"""Space that a backlog left behind goes back to the file system, a little at a time.

`auto_vacuum = INCREMENTAL` against the two others: NONE keeps a file at its largest for ever (one bad night leaves
tens of gigabytes); FULL moves pages at every commit. INCREMENTAL costs one pointer page per thousand and moves pages
only when asked to: by the writer, between two commits.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Final

KEPT_PAGES: Final = 4_000
"""Free pages that stay in the file: the next burst fills them without growing it."""

SHRINK_PAGES: Final = 1_000
"""Pages given back at once, at most: about 4 MB, some milliseconds."""


def shrink(connection: sqlite3.Connection) -> None:
    """Give back what is free beyond `KEPT_PAGES`, at most `SHRINK_PAGES` of it. No transaction may be open.

    A failure is ignored: nothing is lost by it, and the next call tries again.
    """
    with contextlib.suppress(sqlite3.Error):
        free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        if free > KEPT_PAGES:
            # Each step of this pragma moves one page, and execute() makes one step where no column comes back.
            connection.executescript(f"PRAGMA incremental_vacuum({min(SHRINK_PAGES, free - KEPT_PAGES)})")
