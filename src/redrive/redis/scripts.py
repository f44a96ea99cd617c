"""Scripts: Lua sent by its digest, whole only where the server does not know it yet."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack


class Script:
    """One Lua script. `sha` names it on the server."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def packed(value: Any) -> bytes:
    """A value for `cmsgpack.unpack`: lists, tables, texts and bytes (both are strings in Lua), numbers, booleans.

    Lua's reader knows no kind for bytes, so they are sent as texts are. None in the middle of a list would end the list
    in Lua; use an empty text there.
    """
    found: bytes = msgpack.packb(value, use_bin_type=False, unicode_errors="surrogatepass")
    return found
