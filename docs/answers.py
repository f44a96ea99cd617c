"""The page on `--json`: one example of every answer, made by the functions that the commands use."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from redrive import alerting, backups, doctor, service, views
from redrive.core.alerts import evaluate, rules_of
from redrive.core.doctor import RedisReading, check_redis
from redrive.core.letters.groups import Group, GroupEntry, GroupState, GroupWork
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.policy.control import Control, Kind, Pause, Quarantine
from redrive.core.policy.fairness import TenantRecord, priority
from redrive.core.policy.standing import Standing
from redrive.core.ports import AuditEntry, GroupPage, HourCount, LetterStats, LetterSummary, Page
from redrive.core.redrive import JobCounts, JobState
from redrive.errors import NotFoundError
from redrive.runtime.archive import ArchiveFile
from redrive.runtime.backend import FileReport
from redrive.runtime.collector import Collected
from redrive.runtime.redriver import Returned
from redrive.testing import samples

AT: Final = 1_700_000_000_000

INTRO: Final = """\
With `--json` standard output holds exactly one JSON document. Instants are RFC 3339 text in UTC, durations (`…_ms`)
whole milliseconds, absent values null. Header values and bodies that JSON has no kind for are tagged:
`{"$bytes": base64}`, `{"$time": "…"}`, `{"$decimal": "…"}`. Fields may be added in a later version; none changes its
meaning or goes away. `up`, `work` and `serve` print their document when they are up, and log to standard error.
"""


def page() -> str:
    """The text of `docs/reference/json.md`."""
    parts = ["# JSON answers", INTRO.rstrip()]
    for title, document in answers().items():
        parts += [f"## {title}", f"```json\n{json.dumps(document, indent=2, ensure_ascii=False)}\n```"]
    return "\n\n".join(parts) + "\n"


def answers() -> dict[str, Any]:
    """An example of each answer, by the command that gives it."""
    error = NotFoundError('No dead letter has the id "dl_1".', hint="See: redrive dlq list")
    return {
        "`redrive dlq list`": views.page_document(Page(letters=(_summary(),), cursor="b3BhcXVl")),
        "`redrive dlq show`": views.letter_view_document(_letter()),
        "`redrive dlq stats`": views.stats_document(_stats(), (_group(),), last_hour=service.Count(total=1)),
        "`redrive dlq collect --dry-run`": views.found_document((_letter().letter,), {}),
        "`redrive dlq collect`": views.collected_document(
            Collected(
                taken=12,
                new=10,
                left=Counter({"part of a flow: it has a parent": 1}),
                by_queue=Counter({"orders": 10}),
                by_group=Counter({"v2-9f2c4a7b01d3e5f6": 10}),
            )
        ),
        "`redrive dlq groups`": views.groups_document(GroupPage(groups=(_problem(),), cursor=None)),
        "`redrive dlq group show`": views.group_view_document(_problem_view()),
        "`redrive dlq group acknowledge`, `ignore`, `resolve`, `reopen`, `note`, `assign`": views.group_document(
            _problem()
        ),
        "`redrive dlq redrive --dry-run`": views.plan_document(_plan()),
        "`redrive dlq redrive`, `resume`, `abort`, `jobs JOB`": views.job_view_document(_job_view()),
        "`redrive dlq jobs`": {"jobs": [views.job_document(_job())]},
        "`redrive dlq review`, `close`, `restore`": views.review_document(_review()),
        "The same with `--dry-run`": {"dry_run": True, "verb": "close", "letters": 12},
        "`redrive dlq export`": {"file": "letters.jsonl", "letters": 12},
        "`redrive dlq import`": {
            "dry_run": False,
            "file": "letters.jsonl",
            "letters": 12,
            "added": 10,
            "refused": 1,
            "refusals": [{"line": 7, "id": "dl_019c…", "why": "A number is larger than 64 bits."}],
        },
        "`redrive dlq prune`": {"dry_run": False, "removed": 12, "spared": 3, "archive": None},
        "`redrive dlq archives`": {"archives": [views.archive_document(_archive())]},
        "`redrive dlq erase`": {"dry_run": False, **views.erasure_document(_erasure())},
        "`redrive top`": views.overview_document(_overview()),
        "`redrive queues tenants`": views.standings_document("mail", _standings()),
        "`redrive queues pause`, `resume`, `quarantine`": views.control_view_document(_held()),
        "`redrive queues release`": views.released_document(_released()),
        "`redrive queues limits`": {"limits": [views.control_view_document(_control())]},
        "`redrive alerts`": alerting.look_document(_look()),
        "`redrive alerts --watch`, one line for each turn": alerting.notification_document(
            _look().evaluation.notifications[0]
        ),
        "`redrive doctor`": _doctor().document(),
        "`redrive publish`": views.receipt_document(service.Receipt(queue="orders", published=3, duplicates=1)),
        "`redrive queues list`": {"queues": [views.queue_document(_queue())]},
        "`redrive backup`": {"file": "saved.db", "bytes": 4_096},
        "`redrive restore`": views.restored_document(_restored()),
        "`redrive up`, `work`, `serve`": {
            "app": "shop",
            "pid": 4711,
            "url": "http://127.0.0.1:8000",
            "queues": ["orders"],
        },
        "Any error, on standard error": {"error": {"code": error.code, "text": error.text, "hint": error.hint}},
    }


def _standings() -> tuple[Standing, ...]:
    busy = TenantRecord(last_processed_at=AT, total_processed=90, consecutive_batch_count=3)
    held = TenantRecord(last_processed_at=AT - 60_000, total_processed=10, rounds_without_processing=4)
    return (
        Standing(name="acme", waiting=1_200, record=busy),
        Standing(name="bolt", waiting=3, record=replace(held, current_priority=priority(4))),
    )


def _control() -> Control:
    return Control(
        queue="mail", batch=5, rates={"acme": "10/min"}, changed_at=AT, actor="ann", note="their server is slow"
    )


def _held() -> Control:
    aside = Quarantine(kind=Kind.TENANT, name="acme", until=AT, at=AT, actor="ann", note="poison files")
    paused = Pause(at=AT, actor="ann", note="their API is down")
    return Control(queue="orders", paused=paused, quarantined=(aside,), changed_at=AT, actor="ann")


def _released() -> service.Released:
    selection = Selection(queue="orders", reason_code="QUARANTINED", states=OPEN_STATES, tenant="acme")
    aside = service.Aside(kind=Kind.TENANT, name="acme", letters=12, selection=selection)
    return service.Released(control=Control(queue="orders", changed_at=AT, actor="ann"), asides=(aside,))


def _archive() -> ArchiveFile:
    path = Path("redrive-archive/orders.dead_2023-11-14_web-1.jsonl")
    return ArchiveFile(path=path, size_bytes=4_096, letters=12, unreadable=0, oldest_at=AT, newest_at=AT)


def _queue() -> service.QueueView:
    return service.QueueView(
        queue="orders", ready=2, scheduled=1, leased=1, dead=3, oldest_ready_at=AT, is_consumed=True
    )


def _overview() -> service.Overview:
    return service.Overview(
        at=AT,
        queues=(_queue(),),
        stats=_stats(),
        last_hour=service.Count(total=1),
        groups=(),
        tenants={"mail": tuple(_standings())},
        jobs=(_job(),),
    )


def _erasure() -> service.Erasure:
    return service.Erasure(letters=3, held=0, archived=2, files=1, unreadable=0, claims=3)


def _look() -> alerting.Look:
    reading = {"letters_open": {"": 101.0}, "letters_by_tenant": {"acme": 50.0}}
    return alerting.Look(at=AT, evaluation=evaluate(rules_of(), reading, now=AT))


def _doctor() -> doctor.Report:
    reading = RedisReading(
        info={"redis_version": "7.0.15", "role": "master", "used_memory": "104857600", "maxmemory": "536870912"},
        config={"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "allkeys-lru"},
    )
    return doctor.Report(
        broker="redis://localhost:6379/0",
        findings=check_redis(reading),
        facts=tuple(doctor.facts_of(reading)),
    )


def _letter() -> service.LetterView:
    letter = samples.letter("dl_4f2a8c1e", died_at=AT)
    return service.LetterView(
        letter=letter,
        audit=(AuditEntry(letter_id=letter.id, at=AT, actor="ann", action="reviewed", note="told the customer"),),
    )


def _summary() -> LetterSummary:
    letter = _letter().letter
    shared = {field.name for field in dataclasses.fields(LetterSummary)} & set(letter.__dataclass_fields__)
    return LetterSummary(
        **{name: getattr(letter, name) for name in shared},
        message_id=letter.message.id,
        key=letter.message.key,
        tenant=letter.message.tenant,
        message_type=letter.message.properties.type,
        reason_code=letter.reason.code,
        reason_text=letter.reason.text,
        body_bytes=len(letter.message.body),
    )


def _stats() -> LetterStats:
    return LetterStats(
        total=3,
        by_state={"pending": 2, "closed": 1},
        by_queue={"orders": 3},
        by_reason={"TIMEOUT_EXHAUSTED": 3},
        by_group={"fp-1": 3},
        by_tenant={"-": 3},
        oldest_at=AT,
    )


def _group() -> service.GroupCount:
    return service.GroupCount(
        fingerprint="fp-1",
        title="TimeoutError: no answer",
        count=3,
        queue="orders",
        reason_code="TIMEOUT_EXHAUSTED",
        first_failed_at=AT,
    )


def _problem() -> Group:
    return Group(
        fingerprint="v2-9f2c4a7b01d3e5f6",
        title="TimeoutError: no answer",
        queue="orders",
        reason_code="TIMEOUT_EXHAUSTED",
        error_type="TimeoutError",
        error_code="TIMEOUT",
        count=3,
        waiting=2,
        seen=5,
        first_seen=AT,
        last_seen=AT,
        redriven=2,
        succeeded=1,
        returned=1,
        tenants=2,
        top_tenants=(("acme", 2), ("-", 1)),
        versions=(("1.4.1", 3),),
        work=GroupWork(state=GroupState.RESOLVED, resolved_in="1.4.2", assignee="ann", changed_at=AT, changed_by="ann"),
    )


def _problem_view() -> service.GroupView:
    entry = GroupEntry(fingerprint="v2-9f2c4a7b01d3e5f6", at=AT, actor="ann", action="resolved", note="ticket 4711")
    return service.GroupView(group=_problem(), audit=(entry,), hours=(HourCount(at=AT, count=3),))


def _plan() -> service.Plan:
    skip = service.Skip(letter_id="dl_77b0d1", why="it is closed: restore it first")
    return service.Plan(
        send=1,
        skip=1,
        queues=(service.QueuePlan(queue="orders", target="orders", send=1, skip=1),),
        refusals={"not-open": 1},
        letters=(_summary(),),
        skipped=(skip,),
        missing=("dl_nobody",),
        takes_ms=20,
    )


def _job() -> Any:
    counts = JobCounts(selected=10, pending=0, sent=9, skipped=1)
    return dataclasses.replace(
        samples.job("rd_018bcfe56800", created_at=AT),
        state=JobState.DONE,
        is_staged=True,
        counts=counts,
        owner="host:4711",
    )


def _job_view() -> service.JobView:
    skip = service.Skip(letter_id="dl_77b0d1", why="it was redriven 3 times (maximum 3): use --force")
    return service.JobView(
        job=_job(),
        skipped=(skip,),
        refusals={"redriven-often": 1},
        returned=Returned(sent=9, came_back=2, percent=22),
    )


def _review() -> service.ReviewResult:
    skip = service.Skip(letter_id="dl_77b0d1", why="the letter is closed already")
    return service.ReviewResult(to=ReviewState.CLOSED, changed=11, refused=1, refusals=(skip,))


def _restored() -> backups.Restored:
    report = FileReport(path=Path("saved.db"), schema_version=1, messages=12, letters=3, problems=())
    return backups.Restored(
        source=Path("saved.db"),
        broker="sqlite:///orders.db",
        report=report,
        kept=Path("orders.db.replaced-1"),
        is_dry_run=False,
    )
