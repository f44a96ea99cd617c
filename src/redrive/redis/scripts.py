"""Scripts: Lua sent by its digest, whole only where the server does not know it yet."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgpack

ALLOW_OOM: Final = "#!lua flags=allow-oom\n"
"""First line of a script that may run where the server is full. Redis knows it from 7.0 on."""


class Script:
    """One Lua script. `sha` names it on the server. `runs_when_full`: it makes room, so it runs on a full server too;
    what it writes meanwhile is little.
    """

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str, *, runs_when_full: bool = False) -> None:
        self.name = name
        self._set((ALLOW_OOM if runs_when_full else "") + text)

    def without_flags(self) -> bool:
        """For a server that does not know the first line: leave it away from now on. False where there is none."""
        if not self.text.startswith(ALLOW_OOM):
            return False
        self._set(self.text.removeprefix(ALLOW_OOM))
        return True

    def _set(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def packed(value: Any) -> bytes:
    """A value for `cmsgpack.unpack`: lists, tables, texts and bytes (both are strings in Lua), numbers, booleans.

    Lua's reader knows no kind for bytes, so they are sent as texts are. None in the middle of a list would end the list
    in Lua; use an empty text there.
    """
    found: bytes = msgpack.packb(value, use_bin_type=False, unicode_errors="surrogatepass")
    return found
