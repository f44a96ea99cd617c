"""Redrive jobs over HTTP: plan, create, look, follow, abort, resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.responses import JSONResponse, Response

from redrive.core.access import REDACTED
from redrive.core.letters.selection import Selection
from redrive.core.redrive import JOB_TRANSITIONS, Job, JobEvent
from redrive.core.refusals import code_of
from redrive.errors import TransitionError
from redrive.service import JobView, redrivable
from redrive.views import job_document, job_view_document, plan_document
from redrive.web.admin.call import Call
from redrive.web.admin.names import encoded
from redrive.web.admin.problems import refuse
from redrive.web.admin.requests import JobBody
from redrive.web.admin.runners import WAITING
from redrive.web.admin.shown import as_shown, job_as_shown, refuse_edit, refuse_hidden, shown_of


async def plan_job(call: Call) -> Any:
    """What a job would do; nothing is changed."""
    options = refuse_edit(call, call.body.job_options())
    plan = await call.service.plan(refuse_hidden(call, call.body.chosen(call.now)), options)
    document = plan_document(plan)
    for edit in document["edits"]:
        found = await call.app.backend.letters.get(edit["id"])
        if found is not None and shown_of(call, found[0].message) is not None:
            edit["diff"] = [REDACTED]
    return as_shown(call, document)


async def create_job(call: Call) -> Response:
    """Store a job and answer; it is carried out by this process, or by whichever worker finds it first.

    Killed before the job is stored nothing has happened; after it, the job is carried out by whoever comes next, and
    the same Idempotency-Key gets this job.
    """
    body, service = call.body, call.service
    selection, options = refuse_hidden(call, body.chosen(call.now)), refuse_edit(call, body.job_options())
    view = await service.redrive(
        selection, options, actor=call.actor, note=body.note, request_key=call.request_key, run=False
    )
    _check_same(view.job, replace(view.job, selection=redrivable(selection), options=options, note=body.note), body)
    if view.job.state in WAITING and not view.job.owner:
        call.runners.run_waiting()
    return JSONResponse(_document(call, view), 202, {"location": f"{call.root}/api/v1/jobs/{encoded(view.job.id)}"})


def _check_same(job: Job, asked: Job, body: JobBody) -> None:
    """The store knew the key: is it this request? Also after a restart, and in another process."""
    if body.selection.filter is not None:  # "since:2h" means another instant each time
        asked = replace(asked, selection=_since_ever(asked.selection))
        job = replace(job, selection=_since_ever(job.selection))
    if job != asked:
        raise refuse("key_reused", "This Idempotency-Key made another redrive job. Nothing was sent.", job=job.id)


def _since_ever(selection: Selection) -> Selection:
    return replace(selection, since=None, until=None)


async def list_jobs(call: Call) -> Any:
    """Newest first."""
    found = await call.service.jobs(limit=call.query.limit)
    return {"jobs": [job_as_shown(call, _public(job_document(job))) for job in found]}


async def show_job(call: Call) -> Any:
    """One job."""
    return _document(call, await call.service.job(call.path["job_id"]))


async def job_items(call: Call) -> Any:
    """The letters of a job, by position."""
    query, job_id = call.query, call.path["job_id"]
    await call.service.job(job_id)
    found = await call.app.backend.jobs.items(job_id, state=query.state, limit=query.limit, after=query.after)
    items = [
        {
            "position": item.position,
            "letter_id": item.letter_id,
            "state": str(item.state),
            "code": None if item.why is None else str(code_of(item.why)),
            "why": item.why,
        }
        for item in found
    ]
    after = found[-1].position if len(found) == query.limit else None
    return as_shown(call, {"items": items, "after": after})


async def job_events(call: Call) -> Response:
    """Progress, until the job has ended."""
    service, job_id = call.service, call.path["job_id"]
    return await call.streams.of_job(
        lambda: service.job(job_id), last_id=call.last_event_id, shown=lambda document: job_as_shown(call, document)
    )


async def abort_job(call: Call) -> Any:
    """Stop it; what is sent stays sent."""
    return _document(call, await call.service.abort(call.path["job_id"], actor=call.actor, note=call.body.note))


async def pause_job(call: Call) -> Any:
    """Hold it up until it is resumed; it keeps its letters."""
    return _document(call, await call.service.pause(call.path["job_id"], actor=call.actor, note=call.body.note))


async def resume_job(call: Call) -> Response:
    """Go on with it. Answers at once; nothing already sent is sent again. What goes on already is not begun twice."""
    job_id = call.path["job_id"]
    view = await call.service.job(job_id)
    if JobEvent.START not in JOB_TRANSITIONS[view.job.state]:
        raise TransitionError(f"Job {job_id} is {view.job.state}: there is nothing to resume.")
    call.runners.resume(view.job)
    return JSONResponse(_document(call, view), 202, {"location": f"{call.root}/api/v1/jobs/{encoded(job_id)}"})


def _document(call: Call, view: JobView) -> dict[str, Any]:
    found = job_view_document(view)
    _public(found["job"])
    shown: dict[str, Any] = job_as_shown(call, found)
    return shown


def _public(document: dict[str, Any]) -> dict[str, Any]:
    """Without the key of the request that made it: it is another person's."""
    document.pop("request_key", None)
    return document
