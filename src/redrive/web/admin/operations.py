"""Every operation of the admin API, as one table: routes, roles, checks, OpenAPI and the reference are made from it.

A path's `{name}` is one percent-encoded segment, so that a queue may be called `a/b`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from redrive.core.access import Role
from redrive.web.admin import (
    answers,
    archives,
    collecting,
    groups,
    letters,
    parked,
    queues,
    redrives,
    removing,
    sending,
    transfer,
    writes,
)
from redrive.web.admin import requests as ask
from redrive.web.admin.call import Call
from redrive.web.admin.streams import LINES

JSON: Final = "application/json"
Run: TypeAlias = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row. `query` and `body` are what may be asked, `answer` is what comes (with `status`); `run` gives a JSON
    document, or a whole response. `takes_lines`: the body is JSON lines, read bit by bit; what they do must be
    idempotent by itself.
    """

    name: str
    method: str
    path: str
    role: Role
    summary: str
    run: Run
    answer: Any
    query: type[Any] = ask.Nothing
    body: type[Any] | None = None
    status: int = 200
    media_type: str = JSON
    is_write: bool = True
    takes_lines: bool = False

    @property
    def is_audited(self) -> bool:
        """Whether it may change anything."""
        return self.method != "GET" and self.is_write

    @property
    def takes_key(self) -> bool:
        """Whether an Idempotency-Key makes it happen once."""
        return self.method == "POST" and not self.takes_lines

    @property
    def names(self) -> tuple[str, ...]:
        """The names in its path."""
        return tuple(step[1:-1] for step in self.path.split("/") if step.startswith("{"))


async def _me(call: Call) -> Any:
    return {"name": call.actor, "role": str(call.principal.role), "app": call.app.name}


def _made(run: Run, **more: Any) -> Operation:
    return Operation(name=run.__name__.strip("_"), run=run, **more)


def _read(path: str, run: Run, answer: Any, **more: Any) -> Operation:
    return _made(run, method="GET", path=path, answer=answer, **{"role": Role.VIEWER, **more})


def _act(path: str, run: Run, answer: Any, **more: Any) -> Operation:
    return _made(
        run, path=path, answer=answer, **{"method": "POST", "role": Role.OPERATOR, "body": ask.NoteBody, **more}
    )


_API: Final = "/api/v1"
_LETTER: Final = f"{_API}/letters/{{letter_id}}"
_JOB: Final = f"{_API}/jobs/{{job_id}}"
_GROUP: Final = f"{_API}/groups/{{group}}"
_QUEUE: Final = f"{_API}/queues/{{queue}}"
_DLQ: Final = "/admin/dlq/queues"
_ARCHIVE: Final = f"{_API}/archives/{{archive}}"
_PARKED: Final[dict[str, Any]] = {"role": Role.ADMIN}

OPERATIONS: Final[tuple[Operation, ...]] = (
    _read(f"{_API}/me", _me, answers.Me, summary="Who you are to this API"),
    _read(
        f"{_API}/letters",
        letters.list_letters,
        answers.LetterPage,
        query=ask.LettersQuery,
        summary="Dead letters, oldest first, page by page",
    ),
    _read(_LETTER, letters.show_letter, answers.LetterDetail, summary="One letter: message, history, audit trail"),
    _read(
        f"{_LETTER}/body",
        letters.letter_body,
        bytes,
        media_type="application/octet-stream",
        summary="Its exact body, as a download",
    ),
    _read(
        f"{_API}/stats",
        letters.letter_stats,
        answers.Stats,
        query=ask.StatsQuery,
        summary="Counts over letters, and the largest groups",
    ),
    _act(
        f"{_API}/letters/review",
        letters.review_letters,
        answers.Review,
        body=ask.ReviewBody,
        summary="Mark letters as looked at",
    ),
    _act(
        f"{_API}/letters/close",
        letters.close_letters,
        answers.Review,
        body=ask.ReviewBody,
        summary="Close letters: nothing more will be done with them",
    ),
    _act(
        f"{_API}/letters/restore",
        letters.restore_letters,
        answers.Review,
        body=ask.ReviewBody,
        summary="Make closed letters pending again",
    ),
    _read(
        f"{_API}/letters/export",
        transfer.export_letters,
        str,
        query=ask.ExportQuery,
        media_type=LINES,
        role=Role.OPERATOR,
        summary="Letters as JSON lines: whole, with their exact bytes",
    ),
    _act(
        f"{_API}/letters/import",
        transfer.import_letters,
        answers.Loaded,
        query=ask.ImportQuery,
        body=None,
        takes_lines=True,
        role=Role.ADMIN,
        summary="Store letters of JSON lines; those that are there stay as they are",
    ),
    _act(
        f"{_API}/letters/prune",
        removing.prune_letters,
        answers.Pruned,
        body=ask.PruneBody,
        role=Role.ADMIN,
        summary="Remove letters for good, into an archive or not",
    ),
    _act(
        f"{_API}/letters/erase",
        removing.erase_letters,
        answers.Erased,
        body=ask.EraseBody,
        role=Role.ADMIN,
        summary="Erase one person's letters, from store and archives",
    ),
    _read(
        f"{_API}/archives",
        archives.list_archives,
        answers.ArchiveList,
        role=Role.OPERATOR,
        summary="Files of letters that were archived on this server",
    ),
    _read(
        _ARCHIVE,
        archives.read_archive,
        str,
        media_type=LINES,
        role=Role.OPERATOR,
        summary="One of them, as it is",
    ),
    _act(
        f"{_ARCHIVE}/restore",
        archives.restore_archive,
        answers.Restored,
        body=ask.RestoreBody,
        role=Role.ADMIN,
        summary="Load its letters into the store again; the file stays",
    ),
    _read(
        f"{_API}/groups",
        groups.list_groups,
        answers.GroupPage,
        query=ask.GroupsQuery,
        summary="Groups: letters that are one problem, the largest first",
    ),
    _read(_GROUP, groups.show_group, answers.GroupDetail, summary="One group: deaths by the hour, audit trail"),
    _act(
        _GROUP,
        groups.change_group,
        answers.Group,
        method="PATCH",
        body=ask.GroupBody,
        summary="Acknowledge, ignore, resolve or reopen a group; note, assignee",
    ),
    _read(
        f"{_API}/jobs", redrives.list_jobs, answers.JobList, query=ask.PageQuery, summary="Redrive jobs, newest first"
    ),
    _act(
        f"{_API}/jobs/plan",
        redrives.plan_job,
        answers.Plan,
        body=ask.JobBody,
        role=Role.VIEWER,
        is_write=False,
        summary="What a redrive would do; nothing is changed",
    ),
    _act(
        f"{_API}/jobs",
        redrives.create_job,
        answers.JobDetail,
        body=ask.JobBody,
        status=202,
        summary="Send letters back, as a job",
    ),
    _read(_JOB, redrives.show_job, answers.JobDetail, summary="One job"),
    _read(
        f"{_JOB}/items",
        redrives.job_items,
        answers.ItemPage,
        query=ask.ItemsQuery,
        summary="The letters of a job, each with what became of it",
    ),
    _read(
        f"{_JOB}/events",
        redrives.job_events,
        str,
        media_type="text/event-stream",
        summary="Progress of a job as server-sent events, until it has ended",
    ),
    _act(f"{_JOB}/abort", redrives.abort_job, answers.JobDetail, summary="Stop a job; what it sent stays sent"),
    _act(f"{_JOB}/pause", redrives.pause_job, answers.JobDetail, summary="Hold a job up; it keeps its letters"),
    _act(f"{_JOB}/resume", redrives.resume_job, answers.JobDetail, status=202, summary="Go on with a job that stopped"),
    _read(f"{_API}/queues", queues.list_queues, answers.QueueList, summary="Queues, and what waits in them"),
    _read(_QUEUE, queues.show_queue, answers.Queue, summary="One queue"),
    _read(
        f"{_QUEUE}/tenants", queues.queue_tenants, answers.Tenants, summary="Where the tenants of a fair queue stand"
    ),
    _read(f"{_API}/limits", queues.list_limits, answers.LimitsList, summary="Limits that people have changed"),
    _read(
        f"{_QUEUE}/limits", queues.show_limits, answers.Limits, summary="Limits of one queue that people have changed"
    ),
    _act(
        f"{_QUEUE}/limits",
        queues.set_limits,
        answers.Limits,
        method="PUT",
        body=ask.LimitsBody,
        summary="Change limits of a queue while workers run",
    ),
    _act(
        f"{_QUEUE}/limits",
        queues.reset_limits,
        answers.Limits,
        method="DELETE",
        body=None,
        summary="Let the limits be those its consumer says",
    ),
    _act(f"{_QUEUE}/pause", queues.pause_queue, answers.Limits, summary="Let nobody take messages of a queue"),
    _act(f"{_QUEUE}/resume", queues.resume_queue, answers.Limits, summary="Let workers take messages of it again"),
    _act(
        f"{_QUEUE}/quarantine",
        queues.quarantine,
        answers.Limits,
        body=ask.AsideBody,
        summary="Set messages of tenants or keys aside",
    ),
    _act(
        f"{_QUEUE}/release",
        queues.release,
        answers.Limits,
        body=ask.AsideBody,
        summary="Handle messages of tenants or keys again",
    ),
    _act(
        f"{_QUEUE}/messages",
        sending.publish_message,
        answers.Sent,
        body=ask.MessageBody,
        summary="Send a message; answered once it is durable",
    ),
    _read(
        f"{_QUEUE}/collectable",
        collecting.list_collectable,
        answers.Collectable,
        query=ask.CollectQuery,
        role=Role.OPERATOR,
        summary="What messages of a broker's own dead-letter queue would become; nothing is taken",
    ),
    _act(
        f"{_QUEUE}/collect",
        collecting.collect_queue,
        answers.Pass,
        body=ask.CollectBody,
        status=202,
        summary="Take a broker's own dead letters into the store, until the queue is empty",
    ),
    _read(f"{_QUEUE}/collect", collecting.show_collect, answers.Pass, summary="How far the last such pass is"),
    _read(
        f"{_API}/audit",
        writes.list_writes,
        answers.WritePage,
        query=ask.AuditQuery,
        role=Role.ADMIN,
        summary="Who wrote what over this API, newest first",
    ),
    _read(_DLQ, parked.list_parked, list[answers.Parked], summary="Queues of parked messages on RabbitMQ", **_PARKED),
    _read(
        f"{_DLQ}/{{queue}}/messages",
        parked.peek_parked,
        answers.ParkedMessages,
        query=ask.PeekQuery,
        summary="The oldest parked messages; nothing is taken",
        **_PARKED,
    ),
    _act(
        f"{_DLQ}/{{queue}}/re-drive",
        parked.redrive_parked,
        answers.SentBack,
        body=ask.ParkedBody,
        summary="Send the oldest parked messages back",
        **_PARKED,
    ),
)
"""The API. A new row is a new endpoint, checked, documented and tested like the others."""
