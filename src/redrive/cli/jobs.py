"""`redrive dlq redrive | jobs | resume | abort`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli import options as o
from redrive.cli.groups import Change, Filters, Sending, Where, spread
from redrive.cli.in_place import InPlace, redrive_in_place
from redrive.cli.output import ago, facts, note, plural, print_json, safe, say, span, table
from redrive.cli.prompts import Bar, confirm
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.core.letters.selection import Selection
    from redrive.core.redrive import Job, JobOptions
    from redrive.service import JobView, Plan, Service

SKIPS_SHOWN = 10


@spread
def redrive(*, filters: Filters, sending: Sending, change: Change, in_place: InPlace, where: Where) -> None:
    """Send dead letters back to be processed, with fresh attempts.

    It is a stored job: killed half-way it is resumed where it stopped, by `dlq resume` or by any worker. Ctrl-C
    stops it. Nothing is lost and nothing is sent twice. A message that fails again becomes a new letter, linked to
    the old one.

    With --broker amqp://… (or --in-place) it sends back what lies in a broker's own dead-letter queue, also one redrive
    did not make. It is no job then: killed, it is run again, goes on where it stopped, and sends nothing twice.

    \b
      redrive dlq redrive orders --limit 10               the ten oldest of a queue
      redrive dlq redrive --group 9c1e… --rate 50/s       one problem, gently
      redrive dlq redrive dl_4f2a8c… dl_77b0d1…           exactly these
      redrive dlq redrive orders --dry-run                what would be sent, what not, and why
      redrive dlq redrive q.audit.dlq --broker amqp://user@host/vhost     in place, back to q.audit
    """
    place = in_place.place(where)
    if place is not None:
        redrive_in_place(place, filters, sending, change=change, is_json=where.is_json)
        return
    selection = filters.selection()
    change.refuse_everything(selection, "redrive")
    options = sending.options(change.limit)
    is_json = where.is_json

    async def work(service: Service) -> JobView | Plan:
        if change.dry_run:
            return await _plan(service, selection, options, is_json=is_json)
        if not change.yes:
            plan = await _plan(service, selection, options, is_json=is_json)
            if plan.send == 0:
                return plan
            confirm(_question(plan), yes=False)
        total = (await service.stats(selection, top=1)).total
        with Bar("redrive", total=_at_most(total, change.limit), is_quiet=is_json) as bar:
            return await _until_stopped(
                service,
                lambda watch: service.redrive(
                    selection,
                    options,
                    actor=change.who,
                    note=change.note,
                    request_key=sending.request_key,
                    run=not sending.detach,
                    on_progress=watch,
                ),
                bar=bar,
            )

    _finish_redrive(where.run(work), dry_run=change.dry_run, is_json=is_json)


async def _until_stopped(
    service: Service, run: Callable[[Callable[[Job], None]], Awaitable[JobView]], *, bar: Bar
) -> JobView:
    """Run the job. A person's Ctrl-C means: send no more; without this a worker would take the job over and go on."""
    import asyncio

    seen: list[str] = []

    def watch(job: Job) -> None:
        seen[:] = [job.id]
        _advance(bar, job)

    try:
        return await run(watch)
    except asyncio.CancelledError:
        if seen:
            with suppress(RedriveError):
                await service.abort(seen[0], actor=o.actor_name(None), note="Ctrl-C")
            note(f"Stopped. What was sent stays sent. Go on: redrive dlq resume {seen[0]}")
        raise


def _at_most(total: int, limit: int | None) -> int:
    return total if limit is None else min(total, limit)


def _advance(bar: Bar, job: Job) -> None:
    bar(job.counts.sent + job.counts.skipped, job.counts.selected if job.is_staged else None)


async def _plan(service: Service, selection: Selection, options: JobOptions, *, is_json: bool) -> Plan:
    with Bar("look", is_quiet=is_json) as bar:
        return await service.plan(selection, options, on_count=bar)


def _question(plan: Plan) -> str:
    targets = ", ".join(dict.fromkeys(queue.target for queue in plan.queues if queue.send))
    return f"Send {plural(plan.send, 'letter')} back to {targets}?"


def _finish_redrive(result: JobView | Plan, *, dry_run: bool, is_json: bool) -> None:
    from redrive.service import JobView
    from redrive.views import job_view_document, plan_document

    if isinstance(result, JobView):
        _show_job(result, job_view_document(result), is_json=is_json)
        _exit_as(result)
        return
    if is_json:
        print_json(plan_document(result))
    else:
        _print_plan(result)
    is_nowhere = any(queue.send and not queue.target_exists for queue in result.queues)
    if result.missing or is_nowhere or (not dry_run and result.skip):
        raise typer.Exit(1)


def _exit_as(view: JobView) -> None:
    """1 where not every letter that was asked for went out."""
    is_on_its_way = view.job.state in ("done", "staged")
    if view.missing or view.skipped or not is_on_its_way:
        raise typer.Exit(1)


def _print_plan(plan: Plan) -> None:
    if not plan.send and not plan.skip:
        note("No letters to redrive.")
    if plan.queues:
        table(
            ("from", "to", "would send", "would skip"),
            [(queue.queue, queue.target, queue.send, queue.skip) for queue in plan.queues],
            right=("would send", "would skip"),
        )
    for target in dict.fromkeys(queue.target for queue in plan.queues if not queue.target_exists):
        note(
            f'There is no queue "{safe(target)}": nothing can be sent there. Start its consumer or publish to it once, '
            "or name another with --to."
        )
    if plan.takes_ms is not None:
        note(f"It would take about {span(plan.takes_ms)}.")
    for edited in plan.edits:
        say(f"{edited.letter_id}:")
        for line in edited.diff:
            say(f"  {safe(line)}")
    _print_skips([(skip.letter_id, skip.why) for skip in plan.skipped], plan.skip, plan.missing)
    _print_refusals(plan.refusals)
    note("Nothing was changed.")


def _print_skips(skips: list[tuple[str, str]], count: int, missing: tuple[str, ...]) -> None:
    for letter_id, why in skips[:SKIPS_SHOWN]:
        note(f"{letter_id} is skipped: {why}")
    if count > SKIPS_SHOWN:
        note(f"… and {count - SKIPS_SHOWN} more are skipped.")
    for letter_id in missing:
        note(f"{letter_id} does not exist.")


def _print_refusals(refusals: dict[str, int]) -> None:
    if refusals:
        note(f"Skipped by reason: {', '.join(f'{count} {code}' for code, count in refusals.items())}.")


def _show_job(view: JobView, document: dict[str, object], *, is_json: bool) -> None:
    if is_json:
        print_json(document)
        return
    job, counts = view.job, view.job.counts
    say(f"Job {job.id} is {job.state}: {plural(counts.sent, 'letter')} sent, {counts.skipped} skipped.")
    if job.state == "staged":
        note(f"A running worker takes it from here. Watch: redrive dlq jobs {job.id}")
    if job.error is not None:
        note(job.error)
    if job.state in ("failed", "aborted", "paused"):
        note(f"{counts.pending} not sent. Go on: redrive dlq resume {job.id}")
    _print_skips([(skip.letter_id, skip.why) for skip in view.skipped], counts.skipped, view.missing)
    _print_refusals(view.refusals)
    if view.outcomes.sent:
        outcomes = view.outcomes
        late = f", {view.unknown} without an answer" if view.unknown else ""
        note(
            f"Of those sent {outcomes.succeeded} were processed, {outcomes.failed_again} failed again, "
            f"{view.waiting} are on their way{late}."
        )
    returned = view.returned
    if returned is not None and returned.came_back:
        note(
            f"Warning: {returned.percent} % came back within the last minute "
            f"({returned.came_back} of {returned.sent}). Is the cause fixed?"
        )


@spread
def list_jobs(
    job_id: Annotated[
        str | None, typer.Argument(metavar="JOB", help="One job, with what it skipped and why.", show_default=False)
    ] = None,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="How many, newest first.")] = 20,
    where: Where,
) -> None:
    """Show redrive jobs: how far each is, who started it, and what came back.

    \b
      redrive dlq jobs
      redrive dlq jobs rd_019c… --json
    """
    from redrive.views import job_document, job_view_document

    if job_id is not None:
        view = where.run(lambda service: service.job(job_id))
        _show_job(view, job_view_document(view), is_json=where.is_json)
        return
    jobs = where.run(lambda service: service.jobs(limit=limit))
    if where.is_json:
        print_json({"jobs": [job_document(job) for job in jobs]})
    elif not jobs:
        note("No redrive jobs.")
    else:
        _print_jobs(jobs)


def _print_jobs(jobs: tuple[Job, ...]) -> None:
    now = time.time_ns() // 1_000_000
    table(
        ("job", "state", "sent", "skipped", "pending", "who", "started", "error"),
        [
            (
                job.id,
                job.state,
                job.counts.sent,
                job.counts.skipped,
                job.counts.pending,
                job.actor,
                ago(job.created_at, now),
                job.error,
            )
            for job in jobs
        ],
        right=("sent", "skipped", "pending", "started"),
        whole=("job",),
    )


@spread
def resume(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id (rd_…).")],
    *,
    where: Where,
) -> None:
    """Go on with a job that was paused, aborted, failed, or was killed. What was sent is not sent again.

    \b
      redrive dlq resume rd_019c…
    """
    from redrive.views import job_view_document

    async def work(service: Service) -> JobView:
        with Bar("redrive", is_quiet=where.is_json) as bar:
            return await _until_stopped(service, lambda watch: service.resume(job_id, on_progress=watch), bar=bar)

    view = where.run(work)
    _show_job(view, job_view_document(view), is_json=where.is_json)
    _exit_as(view)


@spread
def abort(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id (rd_…).")],
    *,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    where: Where,
) -> None:
    """Stop a job. What it sent stays sent; the rest stays dead and can be sent by `dlq resume` or another job.

    \b
      redrive dlq abort rd_019c… --note "they fail again"
    """

    async def work(service: Service) -> JobView:
        view = await service.job(job_id)
        if dry_run:
            return view
        confirm(f"Stop job {job_id} with {plural(view.job.counts.pending, 'letter')} not yet sent?", yes=yes)
        return await service.abort(job_id, actor=o.actor_name(actor), note=note_text)

    _show_stop(where.run(work), dry_run=dry_run, is_json=where.is_json)


def _show_stop(view: JobView, *, dry_run: bool, is_json: bool) -> None:
    from redrive.views import job_view_document

    if dry_run and not is_json:
        facts([("would stop", view.job.id), ("state", view.job.state), ("not yet sent", view.job.counts.pending)])
        return
    document = job_view_document(view)
    _show_job(view, {**document, "dry_run": True} if dry_run else document, is_json=is_json)


@spread
def pause(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The job's id (rd_…).")],
    *,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    where: Where,
) -> None:
    """Hold a job up until somebody resumes it. It keeps its letters, so that no other job sends them.

    \b
      redrive dlq pause rd_019c… --note "until the bank is back"
      redrive dlq resume rd_019c…
    """
    view = where.run(lambda service: service.pause(job_id, actor=o.actor_name(actor), note=note_text))
    _show_stop(view, dry_run=False, is_json=where.is_json)
