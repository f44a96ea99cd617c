"""A sender that can write what a well-behaved HTTP client refuses to."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redrive.ingest import Gateway

SECRET = "courier-secret"
NOW_S = 1_700_000_000
PROBLEM_MEMBERS = {"type", "title", "status", "detail", "traceId"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        """The body as JSON; a refusal must be a problem document with its status inside."""
        document: dict[str, Any] = json.loads(self.body)
        if self.status != 202:
            assert self.headers["content-type"] == "application/problem+json"
            assert document.keys() >= PROBLEM_MEMBERS
            assert document["status"] == self.status
        return document

    @property
    def code(self) -> str:
        """The last part of the problem's type."""
        return str(self.document["type"]).rpartition(":")[2]


def signed(
    body: bytes, *, secret: str = SECRET, timestamp: str = str(NOW_S), request_id: str | None = None
) -> list[tuple[bytes, bytes]]:
    """The headers of system A."""
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    headers = [(b"x-signature-timestamp", timestamp.encode()), (b"x-signature", digest.encode())]
    return headers if request_id is None else [*headers, (b"x-request-id", request_id.encode())]


async def send(
    gateway: Gateway,
    body: bytes | Iterable[bytes],
    headers: list[tuple[bytes, bytes]] | None = None,
    *,
    path: str = "/courier-x",
    method: str = "POST",
    root_path: str = "",
    declared: bool = True,
) -> Answer:
    """One request straight into the ASGI app. `body` as several chunks is a chunked transfer without a length."""
    chunks = [body] if isinstance(body, bytes) else list(body)
    sent = list(headers or [])
    if declared and isinstance(body, bytes):
        sent.append((b"content-length", str(len(body)).encode()))
    scope = {"type": "http", "method": method, "path": path, "root_path": root_path, "headers": sent}
    incoming = iter(range(len(chunks)))
    events: list[Any] = []

    async def receive() -> Any:
        at = next(incoming, None)
        if at is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunks[at], "more_body": at + 1 < len(chunks)}

    async def collect(event: Any) -> None:
        events.append(event)

    await gateway(scope, receive, collect)
    start = events[0]
    return Answer(
        status=start["status"],
        headers={name.decode(): value.decode("latin-1") for name, value in start["headers"]},
        body=b"".join(event.get("body", b"") for event in events[1:]),
    )
