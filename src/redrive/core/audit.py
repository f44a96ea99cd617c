"""Who wrote what over the admin API, kept for good; and the answers that a repeated request gets again.

A write is kept twice: as *begun* before it is carried out, and with its result afterwards. One that stays begun was cut
off: it may be done or not, and its target says where to look. It has no body, no note, no token and no selection in it:
nothing of a person whose messages they are, so an erasure has nothing to look for here.

An answer is of one Idempotency-Key. Who may carry a request out is decided by a claim (`redrive.core.idempotency`);
what is kept here is only what was answered, written while the claim is held, and before it ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from redrive.core.units import UnixMs
from redrive.errors import ConfigurationError

MAX_PAGE: Final = 1_000

_ID: Final = re.compile(r"rq_[0-9a-f]{12}[0-9a-f]{20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write. `id` sorts by when it began, and is the request's id. `target`: the names in its path. `status`: HTTP
    status of the answer, None while it is not known; `result`: the code of a refusal, or what was counted.
    """

    id: str
    at: UnixMs
    actor: str
    role: str
    operation: str
    target: str = ""
    address: str = ""
    status: int | None = None
    result: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteQuery:
    """Which writes: all conditions given hold together. `since` <= at < `until`."""

    actor: str | None = None
    operation: str | None = None
    target: str | None = None
    since: UnixMs | None = None
    until: UnixMs | None = None

    def takes(self, write: Write) -> bool:
        """Whether every condition holds for this one.

        >>> WriteQuery(actor="ann").takes(Write(id="rq_1", at=0, actor="ann", role="admin", operation="pause_queue"))
        True
        """
        wanted = ((self.actor, write.actor), (self.operation, write.operation), (self.target, write.target))
        return (
            all(want is None or want == have for want, have in wanted)
            and (self.since is None or self.since <= write.at)
            and (self.until is None or write.at < self.until)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePage:
    """Writes, newest first; `cursor` gets the next page, None at the end."""

    writes: tuple[Write, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered, whole. `headers` only those that are the answer's own."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class RequestStore(Protocol):
    """Keeps writes and answers where all servers of one app see them. The rules of `redrive.core.ports` hold."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def put(self, write: Write) -> None:
        """Keep this write, in place of one with the same id: first as begun, then with its result."""
        ...

    async def writes(self, query: WriteQuery, *, limit: int, cursor: str | None = None) -> WritePage:
        """Newest first. Raises `ConfigurationError` for a cursor that no page had."""
        ...

    async def keep(self, key: str, answer: Answer, *, expires_at: UnixMs) -> None:
        """The answer of this key from now on."""
        ...

    async def answer(self, key: str, *, now: UnixMs) -> Answer | None:
        """What is kept for this key; None where nothing is, or its time is over."""
        ...

    async def prune(self, *, now: UnixMs, before: UnixMs, limit: int) -> int:
        """Delete at most `limit` answers whose time is over `now`, and as many writes from `before` that; how many."""
        ...


def write_id(at: UnixMs, random: str) -> str:
    """The id of a write that began then; `random` is 20 hex digits."""
    return f"rq_{at:012x}{random}"


def after_cursor(cursor: str | None) -> str | None:
    """The id that a page's cursor names. Raises `ConfigurationError` for what is none."""
    if cursor is None or _ID.fullmatch(cursor):
        return cursor
    raise ConfigurationError(
        f"Cursor {cursor!r:.60} is not one this store gave out. Nothing was read.", hint="Start without a cursor."
    )


def page_of(found: list[Write], limit: int) -> WritePage:
    """The page of these, where one more than `limit` was asked for."""
    shown = tuple(found[:limit])
    return WritePage(writes=shown, cursor=shown[-1].id if len(found) > limit else None)
