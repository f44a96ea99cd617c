"""Service results as JSON documents: the one stable shape of `--json` and of the admin API.

Instants (`…_at`) are RFC 3339 text in UTC, durations whole milliseconds (`…_ms`), absent values null. Header values
JSON has no kind for are tagged: {"$bytes": base64}, {"$time": …}, {"$decimal": …}. A field may be added in a later
version; none changes its meaning or goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from redrive.backups import Restored
from redrive.core.audit import WritePage
from redrive.core.letters.groups import Group
from redrive.core.letters.letter import Attempt, Letter
from redrive.core.message import Message
from redrive.core.policy.control import Control, Pause, Quarantine
from redrive.core.policy.standing import TOP, Standing, monopolising, share_of, starved
from redrive.core.ports import AuditEntry, GroupPage, LetterStats, LetterSummary, Page
from redrive.core.redrive import Job
from redrive.core.refusals import code_of
from redrive.core.units import UnixMs, rfc3339
from redrive.core.wire import body_document, message_document, options_document, selection_document
from redrive.runtime.archive import ArchiveFile
from redrive.runtime.collector import Collected
from redrive.service import (
    Count,
    Erasure,
    GroupCount,
    GroupView,
    JobView,
    LetterView,
    Loading,
    Overview,
    Plan,
    QueueView,
    Receipt,
    Released,
    ReviewResult,
    Skip,
)

Document: TypeAlias = dict[str, Any]


def instant(at: UnixMs | None) -> str | None:
    """An instant as RFC 3339 text, None as it is."""
    return None if at is None else rfc3339(at)


def summary_document(letter: LetterSummary) -> Document:
    """A letter as a list shows it."""
    return {
        "id": letter.id,
        "queue": letter.queue,
        "dead_letter_queue": letter.dead_letter_queue,
        "state": str(letter.state),
        "reason_code": letter.reason_code,
        "reason_text": letter.reason_text,
        "error_type": letter.error_type,
        "error_code": letter.error_code,
        "attempt_count": letter.attempt_count,
        "message_id": letter.message_id,
        "key": letter.key,
        "tenant": letter.tenant,
        "message_type": letter.message_type,
        "group": letter.fingerprint,
        "group_title": letter.group_title,
        "first_failed_at": instant(letter.first_failed_at),
        "dead_lettered_at": instant(letter.dead_lettered_at),
        "expires_at": instant(letter.expires_at),
        "redrive_count": letter.redrive_count,
        "previous": letter.previous,
        "outstanding_job": letter.outstanding_job,
        "body_bytes": letter.body_bytes,
        "version": letter.version,
    }


def page_document(page: Page) -> Document:
    """`letters`, oldest first, and the `cursor` of the next page (null at the end)."""
    return {"letters": [summary_document(letter) for letter in page.letters], "cursor": page.cursor}


def letter_view_document(view: LetterView) -> Document:
    """One letter with its message, exact body, history and audit trail."""
    return {**_letter(view.letter), "audit": [_audit(entry) for entry in view.audit]}


def _letter(letter: Letter) -> Document:
    return {
        "id": letter.id,
        "system": letter.system,
        "queue": letter.queue,
        "dead_letter_queue": letter.dead_letter_queue,
        "state": str(letter.state),
        "reason_code": letter.reason.code,
        "reason_text": letter.reason.text,
        "error_type": letter.error_type,
        "error_code": letter.error_code,
        "attempt_count": letter.attempt_count,
        "group": letter.fingerprint,
        "group_title": letter.group_title,
        "first_failed_at": instant(letter.first_failed_at),
        "dead_lettered_at": instant(letter.dead_lettered_at),
        "expires_at": instant(letter.expires_at),
        "redrive_count": letter.redrive_count,
        "previous": letter.previous,
        "outstanding_job": letter.outstanding_job,
        "version": letter.version,
        "message": _message(letter.message),
        "history": [_attempt(entry) for entry in letter.history],
    }


def _message(message: Message) -> Document:
    exact = message_document(message)
    return {
        "id": message.id,
        "key": message.key,
        "tenant": message.tenant,
        "priority": message.priority,
        "content_type": message.content_type,
        "published_at": instant(message.published_at),
        "expires_at": instant(message.expires_at),
        "headers": exact["headers"],
        "properties": exact["properties"],
        "body_bytes": len(message.original_body),
        "body": body_document(message.original_body),
    }


def _attempt(entry: Attempt) -> Document:
    return {
        "attempt": entry.attempt,
        "outcome": str(entry.outcome),
        "at": instant(entry.at),
        "duration_ms": entry.duration_ms,
        "error_code": entry.error_code,
        "error_type": entry.error_type,
        "error_text": entry.error_text,
        "traceback": entry.traceback,
        "worker": entry.worker,
        "next_delay_ms": entry.next_delay_ms,
    }


def _audit(entry: AuditEntry) -> Document:
    return {"at": instant(entry.at), "actor": entry.actor, "action": entry.action, "note": entry.note}


def stats_document(stats: LetterStats, groups: Sequence[GroupCount] = (), *, last_hour: Count) -> Document:
    """Counts; every mapping has its largest entry first. `groups` are the problems behind them; `last_hour` is how
    many of the letters died within it. `is_at_least`: not all were looked at, and what is counted are the oldest;
    `last_hour_is_at_least`: the same of those that died within the last hour.
    """
    return {
        "total": stats.total,
        "is_at_least": stats.is_at_least,
        "last_hour": last_hour.total,
        "last_hour_is_at_least": last_hour.is_at_least,
        "by_state": stats.by_state,
        "by_queue": stats.by_queue,
        "by_reason": stats.by_reason,
        "by_tenant": stats.by_tenant,
        "oldest_at": instant(stats.oldest_at),
        "groups": [_group_count(group) for group in groups],
    }


def found_document(letters: Sequence[Letter], left: Mapping[str, int]) -> Document:
    """What messages of a dead-letter queue would become, and how many would be left there, by why."""
    return {
        "left": dict(left),
        "letters": [
            {
                "id": each.id,
                "message_id": each.message.id,
                "queue": each.queue,
                "dead_letter_queue": each.dead_letter_queue,
                "reason_code": each.reason.code,
                "reason_text": each.reason.text,
                "error_type": each.error_type,
                "error_code": each.error_code,
                "attempt_count": each.attempt_count,
                "dead_lettered_at": instant(each.dead_lettered_at),
                "group": each.fingerprint,
                "group_title": each.group_title,
            }
            for each in letters
        ],
    }


def collected_document(done: Collected) -> Document:
    """What a collector has done; the largest entries first."""
    return {
        "taken": done.taken,
        "new": done.new,
        "left": dict(done.left),
        "by_queue": dict(done.by_queue.most_common()),
        "by_group": dict(done.by_group.most_common()),
    }


def groups_document(page: GroupPage) -> Document:
    """One page of groups; `cursor` null at the end."""
    return {"groups": [group_document(group) for group in page.groups], "cursor": page.cursor}


def group_view_document(view: GroupView) -> Document:
    """One group with its deaths by the hour and its audit trail, oldest first."""
    return {
        **group_document(view.group),
        "hours": [{"at": instant(each.at), "count": each.count} for each in view.hours],
        "audit": [
            {"at": instant(entry.at), "actor": entry.actor, "action": entry.action, "note": entry.note}
            for entry in view.audit
        ],
    }


def group_document(group: Group) -> Document:
    """One group. `success_rate` is of the sends whose outcome is known, null where none is."""
    work, bound = group.work, group.work.ignored
    return {
        "group": group.fingerprint,
        "title": group.title,
        "state": str(work.state),
        "queue": group.queue,
        "reason_code": group.reason_code,
        "error_type": group.error_type,
        "error_code": group.error_code,
        "letters": group.count,
        "waiting": group.waiting,
        "seen": group.seen,
        "first_seen": instant(group.first_seen),
        "last_seen": instant(group.last_seen),
        "redriven": group.redriven,
        "succeeded": group.succeeded,
        "returned": group.returned,
        "success_rate": None if group.success_rate is None else round(group.success_rate, 4),
        "tenants": group.tenants,
        "top_tenants": dict(group.top_tenants),
        "versions": dict(group.versions),
        "note": work.note,
        "assignee": work.assignee,
        "ignored": None
        if bound is None
        else {"until": instant(bound.until), "more": bound.more, "rate": bound.rate, "per_ms": bound.per_ms},
        "resolved_in": work.resolved_in,
        "changed_at": instant(work.changed_at),
        "changed_by": work.changed_by,
    }


def _group_count(group: GroupCount) -> Document:
    return {
        "group": group.fingerprint,
        "title": group.title,
        "count": group.count,
        "queue": group.queue,
        "reason_code": group.reason_code,
        "first_failed_at": instant(group.first_failed_at),
    }


def plan_document(plan: Plan) -> Document:
    """What a redrive would do; nothing was changed (`dry_run` is always true)."""
    return {
        "dry_run": True,
        "send": plan.send,
        "skip": plan.skip,
        "queues": [
            {
                "queue": queue.queue,
                "target": queue.target,
                "target_exists": queue.target_exists,
                "send": queue.send,
                "skip": queue.skip,
            }
            for queue in plan.queues
        ],
        "letters": [letter.id for letter in plan.letters],
        "skipped": _coded(plan.skipped),
        "refusals": dict(plan.refusals),
        "missing": list(plan.missing),
        "takes_ms": plan.takes_ms,
        "edits": [{"id": each.letter_id, "diff": list(each.diff)} for each in plan.edits],
    }


def job_document(job: Job) -> Document:
    """A redrive job."""
    counts = job.counts
    return {
        "id": job.id,
        "state": str(job.state),
        "error": job.error,
        "actor": job.actor,
        "note": job.note,
        "request_key": job.request_key,
        "selected": counts.selected,
        "pending": counts.pending,
        "sent": counts.sent,
        "skipped": counts.skipped,
        "is_staged": job.is_staged,
        "selection": selection_document(job.selection),
        "options": options_document(job.options),
        "created_at": instant(job.created_at),
        "updated_at": instant(job.updated_at),
        "runner": job.owner,
    }


def job_view_document(view: JobView) -> Document:
    """A redrive job, why letters were skipped, what came back lately, and what became of all it sent."""
    returned = view.returned
    return {
        "job": job_document(view.job),
        "skipped": _coded(view.skipped),
        "refusals": dict(view.refusals),
        "missing": list(view.missing),
        "came_back": None
        if returned is None
        else {"sent": returned.sent, "came_back": returned.came_back, "percent": returned.percent},
        "outcomes": {
            "sent": view.outcomes.sent,
            "succeeded": view.outcomes.succeeded,
            "failed_again": view.outcomes.failed_again,
            "waiting": view.waiting,
            "unknown": view.unknown,
        },
    }


def review_document(result: ReviewResult) -> Document:
    """What a review changed."""
    return {
        "to": str(result.to),
        "changed": result.changed,
        "refused": result.refused,
        "refusals": _skips(result.refusals),
        "missing": list(result.missing),
    }


def loading_document(loading: Loading) -> Document:
    """What an import has done."""
    refusals = [{"line": each.line, "id": each.letter_id, "why": each.why} for each in loading.refusals]
    return {
        "letters": loading.letters,
        "added": loading.added,
        "refused": loading.refused,
        "refusals": refusals,
    }


def queue_document(queue: QueueView) -> Document:
    """One queue."""
    return {
        "queue": queue.queue,
        "ready": queue.ready,
        "scheduled": queue.scheduled,
        "leased": queue.leased,
        "dead": queue.dead,
        "oldest_ready_at": instant(queue.oldest_ready_at),
        "is_consumed": queue.is_consumed,
        "paused": None if queue.paused is None else pause_document(queue.paused),
        "quarantined": queue.quarantined,
    }


def pause_document(pause: Pause) -> Document:
    """Since when nothing is taken, by whom and why."""
    return {"at": instant(pause.at), "actor": pause.actor, "note": pause.note}


def quarantine_document(each: Quarantine) -> Document:
    """One tenant or key that is set aside."""
    return {
        "kind": str(each.kind),
        "name": each.name,
        "until": instant(each.until),
        "at": instant(each.at),
        "actor": each.actor,
        "note": each.note,
    }


def released_document(found: Released) -> Document:
    """What was released, and the letters that lie aside of each."""
    return {
        "queue": found.control.queue,
        "released": [
            {
                "kind": str(each.kind),
                "name": each.name,
                "letters": each.letters,
                "selection": selection_document(each.selection),
            }
            for each in found.asides
        ],
        "quarantined": [quarantine_document(each) for each in found.control.quarantined],
    }


def erasure_document(found: Erasure) -> Document:
    """What is, or was, erased."""
    names = ("letters", "archived", "files", "held", "unreadable", "claims", "claims_kept")
    return {name: getattr(found, name) for name in names}


def archive_document(found: ArchiveFile) -> Document:
    """One file of letters."""
    return {
        "file": str(found.path),
        "letters": found.letters,
        "bytes": found.size_bytes,
        "oldest_at": instant(found.oldest_at),
        "newest_at": instant(found.newest_at),
        "unreadable": found.unreadable,
    }


def overview_document(found: Overview) -> Document:
    """What is going on at one moment."""
    stats = found.stats
    return {
        "at": instant(found.at),
        "queues": [queue_document(queue) for queue in found.queues],
        "open_letters": stats.total,
        "last_hour": found.last_hour.total,
        "last_hour_is_at_least": found.last_hour.is_at_least,
        "oldest_at": instant(stats.oldest_at),
        "by_reason": stats.by_reason,
        "by_tenant": stats.by_tenant,
        "groups": [group_document(group) for group in found.groups],
        "tenants": {queue: [_standing(each, waiting) for each in waiting] for queue, waiting in found.tenants.items()},
        "jobs": [job_document(job) for job in found.jobs],
    }


def control_view_document(control: Control) -> Document:
    """What a person has changed of a queue; null and a tenant that is not there: as the consumer says."""
    return {
        "queue": control.queue,
        "batch": control.batch,
        "rates": dict(control.rates),
        "paused": None if control.paused is None else pause_document(control.paused),
        "quarantined": [quarantine_document(each) for each in control.quarantined],
        "changed_at": instant(control.changed_at),
        "actor": control.actor,
        "note": control.note,
    }


def standings_document(queue: str, standings: Sequence[Standing], *, top: int = TOP) -> Document:
    """Tenants of a fair queue; the records under the names of system E."""
    return {
        "queue": queue,
        "tenants": [_standing(each, standings) for each in standings],
        "starved": [each.name for each in starved(standings, top=top)],
        "monopolising": [each.name for each in monopolising(standings, top=top)],
    }


def _standing(standing: Standing, standings: Sequence[Standing]) -> Document:
    return {
        "tenant": standing.name,
        "waiting": standing.waiting,
        "share": round(share_of(standing, standings), 4),
        **standing.record.document(),
    }


def receipt_document(receipt: Receipt) -> Document:
    """What became of published messages."""
    return {
        "queue": receipt.queue,
        "published": receipt.published,
        "duplicates": receipt.duplicates,
        "conflicts": receipt.conflicts,
    }


def writes_document(page: WritePage) -> Document:
    """Who wrote what, newest first; `cursor` null at the end."""
    names = ("id", "actor", "role", "operation", "target", "address", "status", "result")
    return {
        "writes": [{"at": instant(each.at), **{name: getattr(each, name) for name in names}} for each in page.writes],
        "cursor": page.cursor,
    }


def restored_document(restored: Restored) -> Document:
    """What a restore put in place."""
    return {
        "dry_run": restored.is_dry_run,
        "source": str(restored.source),
        "broker": restored.broker,
        "messages": restored.report.messages,
        "letters": restored.report.letters,
        "schema_version": restored.report.schema_version,
        "kept": None if restored.kept is None else str(restored.kept),
    }


def _coded(skips: Sequence[Skip]) -> list[Document]:
    return [{"id": skip.letter_id, "code": str(code_of(skip.why)), "why": skip.why} for skip in skips]


def _skips(skips: Sequence[Skip]) -> list[Document]:
    return [{"id": skip.letter_id, "why": skip.why} for skip in skips]
