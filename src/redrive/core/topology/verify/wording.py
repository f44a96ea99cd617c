"""How stories name things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FEW: Final = 3


def named(exchange: str) -> str:
    """An exchange in a story."""
    return f'exchange "{exchange}"' if exchange else "the default exchange"


def quoted(names: Sequence[str], *, few: int = FEW) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(f'"{name}"' for name in names[:few])
    return shown + (f" and {len(names) - few} more" if len(names) > few else "")


def way(path: Sequence[str], *, most: int = 25) -> str:
    """A path as one line; of a very long one its begin and its end."""
    shown = path if len(path) <= most else (*path[: most - 7], "…", *path[-6:])
    return " → ".join(shown)
