"""From an ASGI request to bounded bytes: its size, its time, its trace id."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from redrive.ingest.problems import Problem, Refused
from redrive.ingest.signatures import RawHeaders, header_values

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUEST_ID_HEADER: Final = "x-request-id"
_TRACE_ID: Final = re.compile(r"[A-Za-z0-9._:\-]{1,128}", re.ASCII)
_LENGTH: Final = re.compile(rb"[0-9]{1,19}")


class Disconnected(Exception):
    """The client left before its body was complete. Nothing was enqueued."""


def trace_id_of(headers: RawHeaders, *, otherwise: str) -> str:
    """The request's X-Request-Id where it is given once, is 1 to 128 of `A-Za-z0-9._:-`; else `otherwise`."""
    values = header_values(headers, REQUEST_ID_HEADER)
    if len(values) != 1:
        return otherwise
    text = values[0].decode("latin-1")
    return text if _TRACE_ID.fullmatch(text) else otherwise


def source_in(scope: Scope) -> str | None:
    """The one path segment below where the gateway is mounted; None for any other path."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    below = path[len(root) :] if root and path.startswith(root) else path
    name = below.removeprefix("/")
    return name if name and "/" not in name else None


async def read_body(receive: Receive, *, headers: RawHeaders, limit: int, timeout_s: float) -> bytes:
    """The whole body, at most `limit` bytes: refused by its declared length before a byte is read, and again while
    it streams in, whatever was declared.

    Raises `Refused` with 413 over the limit, 408 when it is not complete in time, 400 for a length that is no
    number; `Disconnected` when the client leaves.
    """
    for declared in header_values(headers, "content-length"):
        if not declared.isdigit():
            raise Refused(Problem(status=400, code="bad_request", detail="Content-Length is not a number."))
        if _LENGTH.fullmatch(declared) is None or int(declared) > limit:
            raise Refused(too_large(limit))
    try:
        async with asyncio.timeout(timeout_s):
            return await _collect(receive, limit)
    except TimeoutError:
        detail = f"The body was not complete within {timeout_s:g} s. Nothing was enqueued; send it again."
        raise Refused(Problem(status=408, code="body_timeout", detail=detail)) from None


async def _collect(receive: Receive, limit: int) -> bytes:
    # One buffer: a body sent byte by byte must not become a list of a million objects.
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise Disconnected
        body += event.get("body", b"")
        if len(body) > limit:
            raise Refused(too_large(limit))
        if not event.get("more_body", False):
            return bytes(body)


def too_large(limit: int) -> Problem:
    """413, naming the limit."""
    return Problem(
        status=413,
        code="body_too_large",
        detail=f"The body is larger than {limit} bytes. Nothing was enqueued.",
        extra={"limitBytes": limit},
    )
