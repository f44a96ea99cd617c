"""BullMQ's failed set as `FailedJobs`: what any worker gave up, Node's or Python's.

What redrive's own workers give up has its letter already, and stays in the set where its producer wants that; `rdl` of
such a job says when it failed so. A person who retries it changes that time, and it is everybody's again.

A part of a flow is left alone. Its parent or its children read it: taken out, a parent would run without it or wait for
ever, and what its children returned would be lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from redrive.brokers.bullmq import jobs
from redrive.brokers.bullmq.batches import MAX_SENT_BYTES
from redrive.brokers.bullmq.keys import HEADER_OPTIONS, Keys
from redrive.brokers.bullmq.scripts import Scripts
from redrive.core.message import Message
from redrive.core.ports import FailedJob, FailedPage, Taking
from redrive.core.units import Millis
from redrive.redis.failures import LinkLost, Refusal, refused, unavailable
from redrive.redis.scripts import packed
from redrive.redis.server import Server

WAIT_MS: Final[Millis] = 5_000
"""How long a look or a removal waits for a connection."""
MAX_SHOWN: Final = 100
MAX_LOOKED_AT: Final = 500
"""Jobs one look goes through: it holds up all other clients for so long."""
LEFT: Final = ("part of a flow: it has a parent", "part of a flow: it has children", "its job is not there")
_GO_BACK: Final = (
    "attempts",
    "backoff",
    "removeOnComplete",
    "removeOnFail",
    "stackTraceLimit",
    "kl",
    "keepLogs",
    "sizeLimit",
)
_ANSWERS: Final = (Taking.GONE, Taking.TAKEN, Taking.CHANGED, Taking.HELD)


class Seen(NamedTuple):
    """A job as it was seen: what must still hold for it to be taken."""

    id: bytes
    score: bytes
    timestamp: bytes
    data_sha1: str


class FailedSet:
    """`FailedJobs` of one server. `keys_of`: a queue's names."""

    def __init__(self, server: Server, scripts: Scripts, *, keys_of: Callable[[str], Keys]) -> None:
        self._server = server
        self._scripts = scripts
        self._keys_of = keys_of

    async def look(self, queue: str, *, limit: int, cursor: Any | None = None) -> FailedPage:
        """See `FailedJobs.look`."""
        keys = self._keys_of(queue)
        after = ("", "") if cursor is None else cursor
        shown = await self._server.run(
            self._scripts.failed,
            [keys["failed"]],
            [keys.base, min(limit, MAX_SHOWN), MAX_SENT_BYTES, MAX_LOOKED_AT, *after],
            wait_ms=WAIT_MS,
            again=True,
        )
        score, last, own, *left = shown[:6]
        return FailedPage(
            jobs=tuple(_failed(*each) for each in shown[6:]),
            own=own,
            left={why: count for why, count in zip(LEFT, left, strict=True) if count},
            cursor=(score, last) if last else None,
        )

    async def take(self, queue: str, batch: Sequence[FailedJob]) -> list[Taking]:
        """See `FailedJobs.take`. Sent once: a second answer could not tell what the first one did."""
        if not batch:
            return []
        keys = self._keys_of(queue)
        names, seen = [keys["failed"], keys["repeat"]], packed([list(each.ref) for each in batch])
        try:
            answers = await self._server.run(
                self._scripts.take_failed, names, [keys.base, seen], wait_ms=WAIT_MS, again=False
            )
        except LinkLost as lost:
            fate = "Whether the failed jobs were taken out is not known; their letters are stored."
            raise unavailable(self._server.where, lost.text, fate=fate) from lost
        for answer in answers:
            if isinstance(answer, Exception):
                raise refused(self._server.where, Refusal(str(answer)), fate="Its letter is stored.")
        return [_ANSWERS[answer] for answer in answers]


def _failed(name: bytes, score: bytes, fields: Sequence[bytes]) -> FailedJob:
    job = dict(zip(fields[::2], fields[1::2], strict=True))
    started = jobs.whole(job.get(b"processedOn"))
    return FailedJob(
        message=_message(name.decode("utf-8", "surrogateescape"), job),
        ref=Seen(name, score, job.get(b"timestamp", b""), hashlib.sha1(job.get(b"data", b"")).hexdigest()),  # noqa: S324
        text=job.get(b"failedReason", b"").decode("utf-8", "replace"),
        traces=traces_of(job.get(b"stacktrace", b"")),
        attempts=jobs.starts_of(job) - 1,
        started_at=started or None,
        failed_at=jobs.whole(job.get(b"finishedOn")) or jobs.whole(score),
    )


def _message(name: str, job: Mapping[bytes, bytes]) -> Message:
    """What it carries; with its producer's options, where redrive did not make it."""
    message = jobs.message_of(name, job)
    if b"rd" in job:
        return message
    options = job.get(b"opts", b"{}").decode("utf-8", "replace")
    return replace(message, headers={**message.headers, HEADER_OPTIONS: options})


def options_in(message: Message) -> dict[str, Any] | None:
    """Of the options its producer gave, those that hold for a copy, too; None for a message that redrive's own
    publishers made. Not those that tell when, how often, under which id or in which flow the first job was to run.
    """
    told = message.headers.get(HEADER_OPTIONS)
    if not isinstance(told, str):
        return None
    try:
        found = json.loads(told)
    except (ValueError, RecursionError):
        return {}
    return {name: found[name] for name in _GO_BACK if name in found} if isinstance(found, dict) else {}


def traces_of(stored: bytes) -> tuple[str, ...]:
    """The field `stacktrace`: a JSON list of texts, oldest first. Whatever else stands there is none."""
    try:
        found = json.loads(stored or b"[]")
    except (ValueError, RecursionError):
        return ()
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()
