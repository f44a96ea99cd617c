"""Answers that come bit by bit: letters as JSON lines, and progress of a redrive job as server-sent events.

`progress` holds the job, sent when it has changed; its last is `end`, and the stream ends. The id of an event stands
for what the job looked like then: whoever comes back with `Last-Event-ID` is told only what it has not seen, and 204
(do not come back) where that was the end. A comment every `HEARTBEAT_MS` keeps proxies from cutting a silent stream. A
client that is gone ends its stream at the next write; so does the server when it stops.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from redrive.core.ports import Clock
from redrive.core.redrive import JobState
from redrive.core.units import Millis
from redrive.errors import RedriveError
from redrive.service import JobView
from redrive.views import job_document
from redrive.web.admin.problems import problem_of, refuse

POLL_MS: Final[Millis] = 500
HEARTBEAT_MS: Final[Millis] = 15_000
MAX_STREAMS: Final = 64
"""Open at once in one process."""
MAX_STREAM_MS: Final[Millis] = 3_600_000
"""Then it ends, and the client comes back with its `Last-Event-ID`."""

LINES: Final = "application/x-ndjson"
ENDED: Final = frozenset({JobState.DONE, JobState.ABORTED, JobState.FAILED})

Look = Callable[[], Awaitable[JobView]]
ShownAs = Callable[[dict[str, Any]], dict[str, Any]]


class BrokenOffError(Exception):
    """Ends an answer that is not whole, so that nobody takes it for one."""


@dataclass(slots=True)
class Streams:
    """The streams of one process."""

    clock: Clock
    open: set[object] = field(default_factory=set)
    is_stopping: bool = False

    async def of_job(self, look: Look, *, last_id: str | None, shown: ShownAs = dict) -> Response:
        """The answer; `shown`: a job as who asks sees it. Raises what looking for the job raises, and `Refused` where
        too many are open.
        """
        first = await look()
        if first.job.state in ENDED and last_id == _id(first):
            return Response(status_code=204)
        return self._opened(self._events(look, last_id, shown), "text/event-stream", **{"x-accel-buffering": "no"})

    def of_lines(self, lines: AsyncIterator[bytes], *, name: str) -> Response:
        """JSON lines as a download. Where they break off, or the server stops, the connection does too: a client that
        was told of an end has them all. Raises `Refused` where too many streams are open.
        """
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return self._opened(self._whole(lines), LINES, **headers)

    async def _whole(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            if self.is_stopping:
                raise BrokenOffError("The server stops.")
            yield line

    def _opened(self, content: AsyncIterator[bytes], media_type: str, **headers: str) -> Response:
        if len(self.open) >= MAX_STREAMS or self.is_stopping:
            raise refuse("too_many_streams")
        ticket = object()
        # Counted before the answer begins: those who come at once must not all pass the check above.
        self.open.add(ticket)
        return _Stream(content, media_type, headers=headers, on_end=lambda: self.open.discard(ticket))

    async def _events(self, look: Look, last_id: str | None, shown: ShownAs) -> AsyncIterator[bytes]:
        seen, silent_ms, spent_ms = last_id, 0, 0
        yield b"retry: 2000\n\n"
        while not self.is_stopping and spent_ms < MAX_STREAM_MS:
            try:
                view = await look()
            except RedriveError as error:
                yield _event("error", "", problem_of(error).document())
                return
            is_over = view.job.state in ENDED
            if _id(view) != seen or is_over:
                seen, silent_ms = _id(view), 0
                yield _event("end" if is_over else "progress", seen, shown(public_job(view)))
            if is_over:
                return
            if silent_ms >= HEARTBEAT_MS:
                silent_ms = 0
                yield b": still here\n\n"
            await self.clock.sleep(POLL_MS)
            silent_ms, spent_ms = silent_ms + POLL_MS, spent_ms + POLL_MS


class _Stream(StreamingResponse):
    """Gives its place back however it ends, also where it never began."""

    def __init__(
        self, content: AsyncIterator[bytes], media_type: str, *, headers: dict[str, str], on_end: Callable[[], None]
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def public_job(view: JobView) -> dict[str, Any]:
    """A job as the API shows it: without the key of the request that made it."""
    found = job_document(view.job)
    found.pop("request_key", None)
    return found


def _id(view: JobView) -> str:
    document = public_job(view)
    document.pop("updated_at")
    document.pop("runner")
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _event(name: str, event_id: str, document: dict[str, Any]) -> bytes:
    head = f"event: {name}\n" + (f"id: {event_id}\n" if event_id else "")
    return f"{head}data: {json.dumps(document)}\n\n".encode()
