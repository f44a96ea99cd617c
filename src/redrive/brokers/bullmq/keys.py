"""The names BullMQ gives things in Redis: the keys of a queue, what a queue may be called, what a job id may be.

    {prefix}:{queue}:wait              every key of a queue starts so; prefix "bull" unless the URL says another
    {prefix}:{queue}:{job id}          a job; with :lock behind it, its lock
    {prefix}:{queue}:redrive:workers   ours: which workers of redrive live (a sorted set, score: until when)
    {prefix}:{queue}:redrive:suspects  ours: since when one of them is missing
    {prefix}:{queue}:redrive:rate      ours: starts in the slots of a shared rate's window
    {prefix}:{queue}:redrive:turns     ours: virtual time of a queue whose turns are taken by tenant
    {prefix}:{queue}:redrive:ends      ours: how far tenants are ahead of it
    {prefix}:{queue}:redrive:served    ours: how often tenants were served, and who was last
    {prefix}:{queue}:redrive:aside     ours: tenants at a limit of their own, with jobs that are set aside
    {prefix}:{queue}:redrive:bands     ours: where those jobs lie
    {prefix}:{queue}:redrive:rates     ours: starts of tenants with a rate
    {prefix}:redrive-queues            ours: names of the queues redrive has had to do with (a set)

Job ids with a colon have three parts or none, so ours cannot be taken for a job's key.

A colon separates the parts of a key, and Node's BullMQ refuses it in a queue's name: `email:send` is `email-send`
there. The name people see stays as it is; `physical` is the one place that knows. Two names that would meet in one
queue are refused.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from redrive.core.message import Message
from redrive.errors import ConfigurationError, InvalidMessageError

HEADER_OPTIONS: Final = "x-bullmq-opts"
"""On a message from BullMQ's failed set: the options its producer gave the job, as JSON. They go back with it."""
MAX_PRIORITY: Final = 2_097_152
"""2**21: BullMQ's limit. A priority is the upper half of a score of 53 bits."""

_INTEGER: Final = re.compile(r"(0|-?[1-9]\d*)\Z", re.ASCII)
"""What Node takes for an id that it gave itself; "00123" is none."""
_GIVEN: Final = re.compile(r"[1-9]\d{0,14}\Z", re.ASCII)
"""What BullMQ itself gives: a number it counts up."""
_PARTS: Final = 3
_MAX_PLAIN: Final = 512
_DIGEST_CHARS: Final = 32
_ID_PREFIX: Final = "rd-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys of one queue."""

    queue: str
    base: str
    """Before every key, the last colon included."""

    def __getitem__(self, part: str) -> str:
        return self.base + part

    def several(self, *parts: str) -> list[str]:
        """These keys, in this order."""
        return [self.base + part for part in parts]

    def metrics(self, target: str) -> str:
        """Counts per minute of what has `completed` or `failed`."""
        return f"{self.base}metrics:{target}"

    @property
    def workers(self) -> str:
        """Ours: who lives."""
        return f"{self.base}redrive:workers"

    @property
    def rate(self) -> str:
        """Ours: starts that a shared rate counts."""
        return f"{self.base}redrive:rate"

    @property
    def suspects(self) -> str:
        """Ours: who is missing, and since when."""
        return f"{self.base}redrive:suspects"


def physical(queue: str) -> str:
    """What the queue is called in Redis."""
    return queue.replace(":", "-")


def check_queue(name: str) -> None:
    """BullMQ's own rule for a name in Redis. Raises `ConfigurationError`."""
    if not name or ":" in name:
        raise ConfigurationError(
            f'"{name}" cannot be the name of a BullMQ queue: it is empty or holds a colon. Nothing was changed.',
            hint='A colon of redrive\'s names is a hyphen there: "email:send" is "email-send".',
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name!r:.120} cannot be the name of a BullMQ queue: it is no text.") from None


@lru_cache(maxsize=4_096)
def keys_of(prefix: str, queue: str) -> Keys:
    """The keys of a queue, by the name people see. Raises `ConfigurationError` for one that cannot be."""
    name = physical(queue)
    check_queue(name)
    return Keys(queue=queue, base=f"{prefix}:{name}:")


def registry(prefix: str) -> str:
    """Ours: the set of queues."""
    return f"{prefix}:redrive-queues"


class Names:
    """Sees to it that no two names meet in one queue. One per broker."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._by_physical: dict[str, str] = {}

    def keys(self, queue: str) -> Keys:
        """The keys of this queue. Raises `ConfigurationError`."""
        known = self._by_physical.setdefault(physical(queue), queue)
        if known != queue:
            raise ConfigurationError(
                f'The queues "{known}" and "{queue}" would be one in Redis: "{physical(queue)}". Nothing was changed.',
                hint="A colon of a name is a hyphen there; give one of them another name.",
            )
        return keys_of(self._prefix, queue)


# -------------------------------------------------------------------------------------------------------- job ids


def check_job_id(job_id: str) -> str:
    """The id, if BullMQ takes it from a caller. Raises `InvalidMessageError`: nothing was written.

    Refused: empty; what Node would take for one of its own numbers ("123", "0", "-5"; "00123" is fine); with a colon,
    unless in exactly three parts ("a:b:c").
    """
    problem = id_problem(job_id)
    if problem is not None:
        raise InvalidMessageError(f'"{job_id:.120}" cannot be a job id: {problem}. The message was not sent.')
    return job_id


def id_problem(job_id: str) -> str | None:
    """Why BullMQ refuses this id; None where it does not."""
    if not job_id:
        return "it is empty"
    if _INTEGER.match(job_id):
        return "BullMQ gives whole numbers itself"
    if ":" in job_id and job_id.count(":") != _PARTS - 1:
        return "a colon may stand in it only between three parts"
    return None


def job_id_of(message: Message) -> str:
    """The id of the job a message becomes: its own id where BullMQ allows that, else a digest of it. So a dashboard,
    and Node's `queue.getJob(id)`, find a message under the name its producer knows.
    """
    name = message.id
    if HEADER_OPTIONS in message.headers and _GIVEN.match(name):
        # BullMQ gave it itself: its job is sent back.
        return name
    is_plain = len(name) <= _MAX_PLAIN and name.isprintable() and not name.startswith(_ID_PREFIX)
    if is_plain and "~" not in name and id_problem(name) is None and name.partition(":")[0] not in _RESERVED:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_ID_PREFIX}{digest[:_DIGEST_CHARS]}"


_RESERVED: Final = frozenset(
    {"wait", "active", "delayed", "prioritized", "completed", "failed", "events", "meta", "stalled", "stalled-check",
     "limiter", "marker", "paused", "repeat", "pc", "id", "waiting-children", "metrics", "de", "dn", "redrive"}
)  # fmt: skip
"""What the queue's own keys are called, or begin with before a colon: no job may lie there."""
