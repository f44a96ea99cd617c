"""`redrive audit`: who wrote what over the admin API."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from redrive.cli import options as o
from redrive.cli.groups import Where, spread
from redrive.cli.output import ago, note, print_json, table

SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Since then: 2h (ago), or 2026-01-31T12:00:00+01:00 (with an offset).",
        show_default=False,
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Before then; written as for --since.", show_default=False),
]
ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="By this person or program.", show_default=False)
]
OperationOption = Annotated[
    str | None,
    typer.Option("--operation", metavar="NAME", help="This operation, e.g. pause_queue.", show_default=False),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", metavar="NAME", help="On this queue, job, group or letter.", show_default=False),
]


@spread
def audit(
    *,
    by: ByOption = None,
    operation: OperationOption = None,
    target: TargetOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1_000, metavar="N", help="The newest so many.")
    ] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="The page after this one.", show_default=False)
    ] = None,
    where: Where,
) -> None:
    """List what was written over the admin API, newest first: who, when, what, on what, and how it ended.

    \b
    One without a status was cut off: look whether it was done. Letters and groups have a trail of their own, which
    has what the command line did, too: `dlq show`, `dlq group show`.

    \b
      redrive audit --app orders:app --since 2d
      redrive audit --app orders:app --by ann --operation erase_letters --json
    """
    from redrive.core.audit import WriteQuery
    from redrive.views import writes_document

    query = WriteQuery(
        actor=by,
        operation=operation,
        target=target,
        since=o.parse_time(since, "--since"),
        until=o.parse_time(until, "--until"),
    )
    page = where.run(lambda service: service.writes(query, limit=limit, cursor=cursor))
    if where.is_json:
        print_json(writes_document(page))
        return
    now = time.time_ns() // 1_000_000
    table(
        ("when", "who", "role", "operation", "target", "status", "result", "from", "id"),
        [
            (
                *(ago(each.at, now), each.actor, each.role, each.operation, each.target),
                *(each.status, each.result, each.address, each.id),
            )
            for each in page.writes
        ],
        right=("when", "status"),
        spare=("role", "from", "id"),
    )
    if page.cursor is not None:
        note(f"There are more: --cursor {page.cursor}")
    elif not page.writes:
        note("No writes.")
