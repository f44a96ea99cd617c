"""`redrive queues list`, `redrive backup`, `redrive restore`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from redrive.cli import options as o
from redrive.cli.groups import Where, spread
from redrive.cli.output import ago, note, plural, print_json, say, table
from redrive.cli.prompts import Bar, confirm
from redrive.cli.target import find_app

if TYPE_CHECKING:
    from redrive.service import QueueView, Service

LOOK_EVERY_S: Final = 0.2


@spread
def list_queues(*, where: Where) -> None:
    """List queues: what can be handed out now, waits for its time, is in hand, and is dead.

    \b
      redrive queues list --app orders:app
      redrive queues list --broker sqlite:///orders.db --json
    """
    from redrive.views import queue_document

    queues = where.run(lambda service: service.queues())
    if where.is_json:
        print_json({"queues": [queue_document(queue) for queue in queues]})
        return
    if not queues:
        note("No queues.")
        return
    now = time.time_ns() // 1_000_000
    held = any(queue.paused is not None or queue.quarantined for queue in queues)
    table(
        ("queue", "ready", "scheduled", "in hand", "dead", "oldest waits", *(("held",) if held else ())),
        [
            (
                *(queue.queue, queue.ready, queue.scheduled, queue.leased, queue.dead),
                ago(queue.oldest_ready_at, now),
                *((_held(queue),) if held else ()),
            )
            for queue in queues
        ],
        right=("ready", "scheduled", "in hand", "dead", "oldest waits"),
    )


def _held(queue: QueueView) -> str | None:
    """Whether a person has paused it, and how many tenants and keys are set aside."""
    paused = None if queue.paused is None else f"paused by {queue.paused.actor}"
    aside = f"{queue.quarantined} set aside" if queue.quarantined else None
    return ", ".join(text for text in (paused, aside) if text) or None


@spread
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The new file to write.")],
    *,
    where: Where,
) -> None:
    """Copy everything (queues, claims, dead letters, jobs) into a new file, while workers go on.

    \b
      redrive backup nightly.db --broker sqlite:///orders.db
    """
    o.refuse_unless(
        target.parent.is_dir(),
        f'There is no directory "{target.parent}" to write "{target.name}" into. Nothing was written.',
    )
    is_whole = where.run(lambda service: _backed_up(service, target, is_quiet=where.is_json))
    size = target.stat().st_size
    if where.is_json:
        print_json({"file": str(target), "bytes": size})
    elif is_whole:
        say(f"Everything is in {target} ({size} bytes).")
    else:
        say(f"Dead letters and redrive jobs are in {target} ({size} bytes). The queues are on the broker's own server.")


async def _backed_up(service: Service, target: Path, *, is_quiet: bool) -> bool:
    """The copy grows under another name until it is whole. Whether it holds the queues too."""
    import asyncio

    part = target.with_name(f"{target.name}.part")
    copying = asyncio.ensure_future(service.backup(target))
    with Bar("backup (bytes)", is_quiet=is_quiet) as bar:
        while not copying.done():
            await asyncio.wait({copying}, timeout=LOOK_EVERY_S)
            bar(part.stat().st_size if part.exists() else 0)
    await copying
    return service.has_queues_in_file


@spread
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `redrive backup` wrote.")],
    *,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file that is there; it is kept beside it.")
    ] = False,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    where: Where,
) -> None:
    """Put a backup in the place of the broker's file. Stop every worker first.

    \b
      redrive restore nightly.db --broker sqlite:///orders.db --dry-run
    """
    from redrive.backups import restore_backup
    from redrive.runtime.adapters import masked
    from redrive.views import restored_document

    url = find_app(where.app, where.broker, may_create=True).settings.broker
    if not dry_run:
        confirm(f"Put {source} in the place of {masked(url)}?", yes=yes)
    result = restore_backup(url, source, replace=overwrite, dry_run=dry_run)
    if where.is_json:
        print_json(restored_document(result))
        return
    held = f"{plural(result.report.messages, 'message')}, {plural(result.report.letters, 'letter')}"
    if dry_run:
        say(f"{source} is sound ({held}) and would become {result.broker}. Nothing was changed.")
        return
    say(f"{result.broker} now holds what {source} holds: {held}.")
    if result.kept is not None:
        say(f"The file that was there is kept as {result.kept}.")
