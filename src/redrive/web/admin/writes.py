"""The lasting record of every write over the API: kept as begun before it is carried out, with its result after.

A write that cannot be kept as begun is not carried out. Killed in between, the record stays begun: what was to be done
may be done or not. Where only the result cannot be kept, whoever asked gets the answer all the same, and an event
tells.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.responses import Response

from redrive.core.audit import RequestStore, Write, write_id
from redrive.core.text import cut
from redrive.core.units import Millis, UnixMs
from redrive.errors import RedriveError
from redrive.runtime.app import Redrive
from redrive.views import writes_document
from redrive.web.admin.call import Call
from redrive.web.admin.problems import MEDIA_TYPE, PROBLEM_TYPE, refuse

KEPT_MS: Final[Millis] = 400 * 86_400_000
"""A little more than a year."""
TIDY_MS: Final[Millis] = 3_600_000
TIDY_BATCH: Final = 1_000
"""Of the writes and of the answers, at most so many go after one write; each adds one of both at most."""
MAX_NUMBER: Final = 0xFFFF
MAX_RESULT_BYTES: Final = 500
MAX_RESULT_FIELDS: Final = 20


async def list_writes(call: Call) -> Any:
    """Who wrote what over this API, newest first."""
    query = call.query
    return writes_document(await call.service.writes(query.wanted(), limit=query.limit, cursor=query.cursor))


@dataclass(slots=True)
class Writes:
    """Keeps the writes of one process, and now and then removes what is old."""

    app: Redrive
    tidied_at: float = float("-inf")
    numbered_at: UnixMs = 0
    number: int = 0

    @property
    def store(self) -> RequestStore | None:
        """Where they are kept; None while the app is not open."""
        return self.app.backend.requests if self.app.is_open else None

    def made(self, call: Call, operation: str, address: str) -> Write:
        """The write that begins now."""
        now = call.now
        # Those of one process and one millisecond are told in their order.
        self.number = self.number + 1 if now == self.numbered_at else 0
        self.numbered_at = now
        return Write(
            id=write_id(now, f"{min(self.number, MAX_NUMBER):04x}{os.urandom(8).hex()}"),
            at=now,
            actor=call.actor,
            role=str(call.principal.role),
            operation=operation,
            target="/".join(call.path.values()) or (call.body.name if operation == "create_token" else ""),
            address=address,
        )

    async def begin(self, write: Write) -> None:
        """Keep it as begun. Raises `RedriveError` where it cannot be kept, `Refused` while the app is not open: nothing
        was carried out.
        """
        if not self.app.is_open:
            raise refuse("starting")
        if self.store is not None:
            await self.store.put(write)

    async def end(self, begun: Write, response: Response) -> None:
        """Keep its result."""
        done = replace(begun, status=response.status_code, result=result_of(response))
        store = self.store
        if store is None:
            return
        try:
            await store.put(done)
        except RedriveError as error:
            self.app.events.emit("api.failed", operation=begun.operation, error_type=type(error).__name__)
            return
        await self._tidy(store)

    async def _tidy(self, store: RequestStore) -> None:
        """Remove a batch of what is old; the next write goes on where there is more, so that none waits for long."""
        if self.app.clock.monotonic_ms() - self.tidied_at < TIDY_MS:
            return
        self.tidied_at = self.app.clock.monotonic_ms()
        now = self.app.clock.now()
        with contextlib.suppress(RedriveError):
            if await store.prune(now=now, before=now - KEPT_MS, limit=TIDY_BATCH) >= TIDY_BATCH:
                self.tidied_at = float("-inf")


def result_of(response: Response) -> str:
    """What an answer says in numbers: `changed=3 refused=0`, the code of a refusal, the place of what was made. No text
    of the answer is taken: it may be a person's.
    """
    found = [response.headers["location"]] if "location" in response.headers else []
    try:
        document = json.loads(bytes(response.body))
    except ValueError:
        document = None
    if isinstance(document, dict):
        if response.headers.get("content-type") == MEDIA_TYPE:
            found.append(str(document["type"]).removeprefix(PROBLEM_TYPE))
        else:
            numbers = {name: value for name, value in document.items() if isinstance(value, int)}
            found += [f"{name}={json.dumps(numbers[name])}" for name in list(numbers)[:MAX_RESULT_FIELDS]]
    return cut(" ".join(found), MAX_RESULT_BYTES)
