"""Space that a backlog left behind goes back to the file system, a little at a time.

`auto_vacuum = INCREMENTAL` against the two others: NONE keeps a file at its largest for ever (one bad night leaves
tens of gigabytes); FULL moves pages at every commit. INCREMENTAL costs one pointer page per thousand and moves pages
only when asked to: here, where records are pruned.
"""

from __future__ import annotations

from typing import Final

from redrive.sqlite.writer import Tx

KEPT_PAGES: Final = 4_000
"""Free pages that stay in the file: the next burst fills them without growing it."""

SHRINK_PAGES: Final = 1_000
"""Pages given back in one transaction, at most: about 4 MB, some milliseconds."""


def shrink(tx: Tx) -> None:
    """Give back what is free beyond `KEPT_PAGES`, at most `SHRINK_PAGES` of it."""
    free: int = tx.execute("PRAGMA freelist_count").fetchone()[0]
    if free > KEPT_PAGES:
        tx.execute(f"PRAGMA incremental_vacuum({min(SHRINK_PAGES, free - KEPT_PAGES)})").fetchall()
