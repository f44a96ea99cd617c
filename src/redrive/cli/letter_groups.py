"""`redrive dlq groups`, `redrive dlq group show | acknowledge | ignore | resolve | reopen | note | assign`."""

from __future__ import annotations

import time
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from redrive.cli import options as o
from redrive.cli.groups import Where, spread
from redrive.cli.output import ago, facts, note, plural, print_json, say, table

if TYPE_CHECKING:
    from redrive.core.ports import GroupPage
    from redrive.service import GroupView

GroupArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's id (v1-…); see: redrive dlq groups.")
]


class GroupStateChoice(StrEnum):
    """States of groups, as a choice that the shell completes."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    IGNORED = "ignored"
    RESOLVED = "resolved"


@spread
def list_groups(
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Only of this queue.", show_default=False)
    ] = None,
    *,
    state: Annotated[
        list[GroupStateChoice] | None,
        typer.Option("--state", help="In this state; may be given several times.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Groups on one page.")] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where the page before ended.", show_default=False)
    ] = None,
    where: Where,
) -> None:
    """List the problems behind the dead letters, those with the most waiting letters first.

    \b
      redrive dlq groups                          everything
      redrive dlq groups orders --state open      what nobody has looked at
      redrive dlq list --group v1-9f…             the letters of one
    """
    from redrive.core.letters.groups import GroupState

    states = [GroupState(entry.value) for entry in state or ()]
    page = where.run(lambda service: service.groups(states=states, queue=queue, limit=limit, cursor=cursor))
    if where.is_json:
        from redrive.views import groups_document

        print_json(groups_document(page))
        return
    _print_page(page)


def _print_page(page: GroupPage) -> None:
    if not page.groups:
        note("No groups.")
        return
    now = time.time_ns() // 1_000_000
    table(
        ("group", "problem", "state", "waiting", "letters", "tenants", "last seen"),
        [
            (g.fingerprint, g.title, str(g.work.state), g.waiting, g.count, g.tenants, ago(g.last_seen, now))
            for g in page.groups
        ],
        right=("waiting", "letters", "tenants", "last seen"),
        whole=("group",),
    )
    if page.cursor is not None:
        note(f"More: --cursor {page.cursor}")


@spread
def show(group: GroupArgument, *, where: Where) -> None:
    """Show one group: how often, since when, whom it hit, what redriving it did, and who did what with it.

    \b
      redrive dlq group show v1-9f2c…
    """
    view = where.run(lambda service: service.group(group))
    if where.is_json:
        from redrive.views import group_view_document

        print_json(group_view_document(view))
        return
    _print_view(view)


def _print_view(view: GroupView) -> None:
    group, work = view.group, view.group.work
    now = time.time_ns() // 1_000_000
    rate = "nothing known" if group.success_rate is None else f"{group.success_rate:.0%}"
    facts(
        [
            ("group", group.fingerprint),
            ("problem", group.title),
            ("state", _state(view)),
            ("queue", group.queue),
            ("reason", group.reason_code),
            ("letters", f"{group.count}, {group.waiting} waiting, {group.seen} ever"),
            ("first seen", ago(group.first_seen, now)),
            ("last seen", ago(group.last_seen, now)),
            ("redriven", f"{group.redriven}, of those known {rate} succeeded"),
            ("tenants", f"{group.tenants}: " + _named(group.top_tenants)),
            ("versions", _named(group.versions) or None),
            ("assignee", work.assignee),
            ("note", work.note or None),
        ]
    )
    if view.hours:
        say("")
        table(("hour", "letters"), [(_instant(each.at), each.count) for each in view.hours], right=("letters",))
    if view.audit:
        say("")
        rows = [(ago(entry.at, now), entry.actor, entry.action, entry.note) for entry in view.audit]
        table(("when", "who", "what", "note"), rows)


def _state(view: GroupView) -> str:
    work = view.group.work
    if work.resolved_in is not None:
        return f"{work.state} in {work.resolved_in}"
    bound = work.ignored
    if bound is None:
        return str(work.state)
    until = "" if bound.until is None else f" until {_instant(bound.until)}"
    more = "" if bound.more is None else f", for {bound.more} more"
    rate = (
        "" if bound.rate is None or bound.per_ms is None else f", up to {bound.rate} within {bound.per_ms // 1_000} s"
    )
    return f"{work.state}{until}{more}{rate}"


def _named(counted: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted)


def _instant(at: int) -> str:
    from redrive.core.units import rfc3339

    return rfc3339(at)


# ---------------------------------------------------------------------------------------------------- changing


def _change(where: Where, group: str, *, actor: str | None, **changes: Any) -> None:
    changed = where.run(lambda service: service.change_group(group, actor=o.actor_name(actor), **changes))
    if where.is_json:
        from redrive.views import group_document

        print_json(group_document(changed))
        return
    say(f"{changed.fingerprint} is {changed.work.state}: {plural(changed.waiting, 'letter')} waiting.")


@spread
def acknowledge(group: GroupArgument, *, note: o.NoteOption = "", actor: o.ActorOption = None, where: Where) -> None:
    """Say that somebody knows of this problem; its letters stay where they are.

    \b
      redrive dlq group acknowledge v1-9f2c… --note "vendor is down, ticket 4711"
    """
    from redrive.core.letters.groups import GroupState

    _change(where, group, actor=actor, to=GroupState.ACKNOWLEDGED, note=note or None)


@spread
def ignore(
    group: GroupArgument,
    *,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="For so long, e.g. 2d.", show_default=False)
    ] = None,
    more: Annotated[
        int | None, typer.Option("--more", min=1, metavar="N", help="For so many more letters.", show_default=False)
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option("--rate", min=1, metavar="N", help="As long as no more than so many die ...", show_default=False),
    ] = None,
    per: Annotated[str, typer.Option("--per", metavar="TIME", help="... within this time.")] = "1h",
    note: o.NoteOption = "",
    actor: o.ActorOption = None,
    where: Where,
) -> None:
    """Leave a problem alone: for a time, for so many letters, or as long as it stays rare. Past its bound it is open.

    \b
      redrive dlq group ignore v1-9f2c… --for 2d
      redrive dlq group ignore v1-9f2c… --rate 10 --per 1h --note "a few of these are normal"
    """
    from redrive.core.letters.groups import GroupState, Ignored

    until = o.parse_duration(lasting, "--for")
    per_ms = (o.parse_duration(per, "--per") or timedelta(hours=1)) // timedelta(milliseconds=1)
    ignored = Ignored(
        until=None if until is None else time.time_ns() // 1_000_000 + until // timedelta(milliseconds=1),
        more=more,
        rate=rate,
        per_ms=None if rate is None else per_ms,
    )
    _change(where, group, actor=actor, to=GroupState.IGNORED, ignored=ignored, note=note or None)


@spread
def resolve(
    group: GroupArgument,
    *,
    version: Annotated[
        str | None,
        typer.Option("--in", metavar="VERSION", help="Fixed in this version of the app.", show_default=False),
    ] = None,
    note: o.NoteOption = "",
    actor: o.ActorOption = None,
    where: Where,
) -> None:
    """Say that this problem is fixed. A new failure opens it again; with --in, only one in that version or later.

    \b
      redrive dlq group resolve v1-9f2c… --in 1.4.2
    """
    from redrive.core.letters.groups import GroupState

    _change(where, group, actor=actor, to=GroupState.RESOLVED, resolved_in=version, note=note or None)


@spread
def reopen(group: GroupArgument, *, note: o.NoteOption = "", actor: o.ActorOption = None, where: Where) -> None:
    """Make a problem open again.

    \b
      redrive dlq group reopen v1-9f2c… --note "it was something else"
    """
    from redrive.core.letters.groups import GroupState

    _change(where, group, actor=actor, to=GroupState.OPEN, note=note or None)


@spread
def write_note(
    group: GroupArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the next person should know.")],
    *,
    actor: o.ActorOption = None,
    where: Where,
) -> None:
    """Write on a group; the note before it stays in the audit trail.

    \b
      redrive dlq group note v1-9f2c… "happens when the relay restarts"
    """
    _change(where, group, actor=actor, note=text)


@spread
def assign(
    group: GroupArgument,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Who looks after it; left out: nobody.", show_default=False)
    ] = "",
    *,
    actor: o.ActorOption = None,
    where: Where,
) -> None:
    """Say who looks after a problem.

    \b
      redrive dlq group assign v1-9f2c… ann
    """
    _change(where, group, actor=actor, assignee=name)
