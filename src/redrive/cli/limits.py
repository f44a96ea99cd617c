"""`redrive queues limits | tenants`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli import options as o
from redrive.cli.groups import Where, spread
from redrive.cli.output import ago, note, print_json, say, table
from redrive.cli.prompts import confirm

if TYPE_CHECKING:
    from redrive.core.policy.control import Control
    from redrive.core.policy.standing import Standing
    from redrive.service import Service


@spread
def limits(
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Whose limits to change.", show_default=False)
    ] = None,
    *,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", min=1, metavar="N", help="Starts of one tenant in a row while another waits.", show_default=False
        ),
    ] = None,
    rates: Annotated[
        list[str] | None,
        typer.Option(
            "--rate",
            metavar="TENANT=RATE",
            help="A tenant's own rate: acme=10/min; '*=5/s' is every tenant without one. May be given several times.",
            show_default=False,
        ),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Let the consumer's own limits hold again.")] = False,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    where: Where,
) -> None:
    """Change how tenants take turns in a queue, while its workers run; without anything to change, show what was.

    \b
    Running workers follow within seconds. What is not named stays; a tenant without a rate here, and a queue that is
    reset, go by what the consumer says.

    \b
      redrive queues limits --app mail:app
      redrive queues limits mail --batch 5 --app mail:app
      redrive queues limits mail --rate acme=10/min --note "their server is slow" --app mail:app
      redrive queues limits mail --reset --app mail:app
    """
    if batch is None and not rates and not reset:
        found = where.run(lambda service: service.controls())
        _show([control for control in found if queue in (None, control.queue)], is_json=where.is_json)
        return
    o.refuse_unless(queue, "Whose limits? Nothing was changed.", "Name the queue.")
    o.refuse_unless(not reset or (batch is None and not rates), "--reset takes everything back: say nothing beside it.")
    assert queue is not None, "asked for"
    wanted = _rates(rates)
    changed = where.run(
        lambda service: _changed(
            service,
            queue,
            batch=batch,
            rates=wanted,
            reset=reset,
            who=(o.actor_name(actor), note_text),
            care=(yes, dry_run),
        )
    )
    if dry_run and not where.is_json:
        say(f'Would change the limits of "{queue}" to this. Nothing was changed.')
    _show([changed], is_json=where.is_json)


@spread
def tenants(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="A fair queue.")],
    *,
    top: Annotated[int, typer.Option("--top", min=1, max=1_000, help="Tenants per list.")] = 10,
    where: Where,
) -> None:
    """Show the tenants of a fair queue: who has waited longest, and who got most of what was started.

    \b
    A tenant with messages is never skipped for long: rounds without service are many only where a limit of its own
    holds it back. Change that with: redrive queues limits.

    \b
      redrive queues tenants mail --app mail:app
      redrive queues tenants mail --app mail:app --json
    """
    from redrive.core.policy.standing import monopolising, starved

    found = where.run(lambda service: service.standings(queue))
    if where.is_json:
        from redrive.views import standings_document

        print_json(standings_document(queue, found, top=top))
        return
    if not found:
        note(f'Nobody waits in "{queue}", or it is not a fair queue.')
        return
    for title, chosen in (("waits longest", starved(found, top=top)), ("gets most", monopolising(found, top=top))):
        if chosen:
            _print_standings(title, chosen, found)


def _print_standings(title: str, chosen: tuple[Standing, ...], all_of_them: tuple[Standing, ...]) -> None:
    from redrive.core.policy.standing import share_of

    now = time.time_ns() // 1_000_000
    columns = (title, "waiting", "started", "share", "last start", "rounds without", "priority", "in a row")
    table(
        columns,
        [
            (
                each.name,
                each.waiting,
                each.record.total_processed,
                f"{share_of(each, all_of_them) * 100:.1f} %",
                ago(each.record.last_processed_at, now),
                each.record.rounds_without_processing,
                each.record.current_priority,
                each.record.consecutive_batch_count,
            )
            for each in chosen
        ],
        right=columns[1:],
    )
    say("")


async def _changed(
    service: Service,
    queue: str,
    *,
    batch: int | None,
    rates: dict[str, str],
    reset: bool,
    who: tuple[str, str],
    care: tuple[bool, bool],
) -> Control:
    from redrive.core.policy.control import Control, merged, without_limits

    actor, note_text = who
    yes, dry_run = care
    if dry_run:
        known = {control.queue: control for control in await service.controls()}
        before = known.get(queue, Control(queue=queue))
        before = without_limits(before) if reset else before
        return merged(before, batch=batch, rates=rates)
    if reset:
        confirm(f'Let the consumer\'s own limits of "{queue}" hold again?', yes=yes)
        return await service.reset_limits(queue, actor=actor, note=note_text)
    # What cannot be is refused before anybody is asked.
    Control(queue=queue, batch=batch, rates=rates)
    confirm(f'Change the limits of "{queue}" for every running worker?', yes=yes)
    return await service.set_limits(queue, batch=batch, rates=rates, actor=actor, note=note_text)


def _rates(given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given or ():
        tenant, equals, rate = pair.rpartition("=")
        o.refuse_unless(equals and tenant and rate, f'--rate "{pair}" is not TENANT=RATE.', "For example acme=10/min.")
        found[tenant] = rate
    return found


def _show(controls: list[Control], *, is_json: bool) -> None:
    if is_json:
        from redrive.views import control_view_document

        print_json({"limits": [control_view_document(control) for control in controls]})
        return
    rows = [row for control in controls for row in _rows(control)]
    if not rows:
        note("No limits are set: what the consumers say holds.")
        return
    table(("queue", "what", "limit", "who", "since", "why"), rows, right=("since",), spare=("why",))


def _rows(control: Control) -> list[tuple[str, str, str, str, str | None, str]]:
    since = ago(control.changed_at, time.time_ns() // 1_000_000) if control.changed_at else None
    beside = (control.actor, since, control.note)
    batch = [] if control.batch is None else [("batch", str(control.batch))]
    return [
        (control.queue, *row, *beside) for row in [*batch, *((f"rate of {t}", r) for t, r in control.rates.items())]
    ]
