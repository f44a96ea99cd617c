"""Names in paths: one segment each, percent-encoded, so that a queue called `a/b` is not the path `a`, `b`."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from redrive.web.admin.problems import refuse

MAX_NAME_BYTES: Final = 1_000


def encoded(name: str) -> str:
    """A name as one segment."""
    return quote(name, safe="")


def decoded(segment: str) -> str:
    """The name of a segment. Raises `Refused` for what is not UTF-8, empty, too long, or has a NUL."""
    try:
        name = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise refuse("malformed", "A name in the path is not percent-encoded UTF-8.") from None
    if not name or len(name.encode()) > MAX_NAME_BYTES or "\0" in name:
        raise refuse("invalid", f"A name in the path has 1 to {MAX_NAME_BYTES} bytes and no NUL.")
    return name


def own_path(scope: Any) -> str:
    """The path as it came, still encoded, without what this app is mounted under."""
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    root = scope.get("root_path", "")
    if not root:
        return path
    end = 0
    while end < len(path):
        end = path.find("/", end + 1)
        end = len(path) if end < 0 else end
        if unquote_to_bytes(path[:end]) == root.encode("utf-8", "surrogateescape"):
            return path[end:] or "/"
    return path
