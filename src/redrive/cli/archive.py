"""`redrive dlq export | import | prune | erase | archives`."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from redrive.cli import options as o
from redrive.cli.groups import Change, Filters, Where, spread
from redrive.cli.output import ago, note, plural, print_json, say, table
from redrive.cli.prompts import Bar, confirm
from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.core.letters.letter import Letter
    from redrive.core.letters.selection import Selection
    from redrive.service import Loading, Service

BATCH: Final = 100
STANDARD_OUTPUT: Final = Path("-")


@spread
def export(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The new file; - for standard output.")],
    *,
    filters: Filters,
    limit: o.LimitOption = None,
    where: Where,
) -> None:
    """Write letters to a file of JSON lines: whole, with their exact bytes and every attempt. Nothing is changed.

    \b
      redrive dlq export letters.jsonl
      redrive dlq export - --queue orders --reason VALIDATION_FAILED | jq .message.body
    """
    selection = filters.selection()
    if target == STANDARD_OUTPUT:
        where.run(lambda service: _print_letters(service, selection, limit))
        return
    if target.exists():
        raise ConfigurationError(f'"{target}" exists already. Nothing was written.', hint="Name a new file.")

    count = where.run(lambda service: _exported(service, selection, target, limit=limit, is_quiet=where.is_json))
    if where.is_json:
        print_json({"file": str(target), "letters": count})
    else:
        say(f"{plural(count, 'letter')} written to {target}.")


async def _print_letters(service: Service, selection: Selection, limit: int | None) -> None:
    from redrive.runtime.archive import line_of

    async for letter in service.whole(selection, limit=limit):
        sys.stdout.write(line_of(letter).decode())


async def _exported(service: Service, selection: Selection, target: Path, *, limit: int | None, is_quiet: bool) -> int:
    """The file appears under its name once it is whole."""
    import asyncio

    from redrive.runtime.archive import Archive

    part, count = target.with_name(f"{target.name}.part"), 0
    part.unlink(missing_ok=True)
    with Archive(part) as archive, Bar("export", is_quiet=is_quiet) as bar:
        batch: list[Letter] = []
        async for letter in service.whole(selection, limit=limit, on_count=bar):
            batch.append(letter)
            count += 1
            if len(batch) >= BATCH:
                await asyncio.to_thread(archive.write, batch)
                batch.clear()
        await asyncio.to_thread(archive.write, batch)
    part.rename(target)
    return count


@spread
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `dlq export` or `dlq prune` wrote.")],
    *,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    where: Where,
) -> None:
    """Load letters from a file of JSON lines. Those that are there already stay as they are, so it can be repeated.

    A letter that the store cannot hold is named with its line, and the others are loaded all the same (exit code 1).

    \b
      redrive dlq import letters.jsonl --dry-run
      redrive dlq import letters.jsonl --yes
    """
    from redrive.runtime.archive import letters_in

    count = sum(1 for _ in letters_in(source))
    document: dict[str, Any] = {"dry_run": dry_run, "file": str(source), "letters": count}
    if dry_run:
        text = f"{source} holds {plural(count, 'letter')}. Nothing was changed."
        print_json(document) if where.is_json else say(text)
        return
    confirm(f"Load {plural(count, 'letter')} from {source}?", yes=yes or count == 0)
    done = where.run(lambda service: _imported(service, source, total=count, is_quiet=where.is_json), may_create=True)
    if where.is_json:
        from redrive.views import loading_document

        print_json({**document, **loading_document(done)})
    else:
        there = count - done.added - done.refused
        say(f"{plural(done.added, 'letter')} loaded; {there} were there already.")
        for refused in done.refusals:
            note(f"Line {refused.line} ({refused.letter_id}) was refused: {refused.why}")
        if done.refused > len(done.refusals):
            note(f"... and {done.refused - len(done.refusals)} more.")
    if done.refused:
        raise typer.Exit(1)


async def _imported(service: Service, source: Path, *, total: int, is_quiet: bool) -> Loading:
    from redrive.runtime.archive import numbered_letters_in
    from redrive.service import Loading

    loading = Loading(service=service)
    with Bar("import", total=total, is_quiet=is_quiet) as bar:
        for number, line, letter in numbered_letters_in(source):
            await loading.add(letter, line=number, size=len(line))
            bar(loading.letters)
        await loading.flush()
    return loading


@spread
def prune(
    *,
    filters: Filters,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Dead for longer: 7d, 36h.", show_default=False),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="Append them to this file of JSON lines first; `dlq import` loads it again.",
            show_default=False,
        ),
    ] = None,
    change: Change,
    where: Where,
) -> None:
    """Remove letters for good. Without --archive only those that were sent back or closed.

    \b
    Letters that nobody has decided about (pending, reviewed) are removed only into an archive, or where --state names
    their state. What a redrive job holds stays. Workers remove closed letters by themselves when their time is over.

    \b
      redrive dlq prune --older-than 7d --dry-run
      redrive dlq prune --older-than 30d --archive letters.jsonl --yes
      redrive dlq prune orders --state closed --yes
    """
    given = filters.selection()
    selection = _older(given, older_than)
    change.refuse_everything(selection, "prune")
    meant = where.run(lambda service: service.prunable(selection, is_archived=archive is not None))
    selection, count, spared = meant.selection, meant.letters, meant.spared
    count = count if change.limit is None else min(count, change.limit)
    into = None if archive is None else str(archive)
    removed = 0
    if not change.dry_run:
        confirm(f"Remove {plural(count, 'letter')} for good?", yes=change.yes or count == 0)
        removed = where.run(lambda service: _removed(service, selection, archive, change=change, total=count))
    if where.is_json:
        found = {"letters": count} if change.dry_run else {"removed": removed}
        print_json({"dry_run": change.dry_run, **found, "spared": spared, "archive": into})
        return
    if change.dry_run:
        say(f"Would remove {plural(count, 'letter')}. Nothing was changed.")
    else:
        say(f"{plural(removed, 'letter')} removed{'' if into is None else f', kept in {into}'}.")
    if spared:
        note(f"{plural(spared, 'letter')} that nobody has decided about stay: say --archive FILE to remove them too.")


def _older(selection: Selection, older_than: str | None) -> Selection:
    """The selection, narrowed to letters that old."""
    if older_than is None:
        return selection
    age = o.parse_duration(older_than, "--older-than")
    assert age is not None, "given"
    until = time.time_ns() // 1_000_000 - int(age.total_seconds() * 1_000)
    return replace(selection, until=until if selection.until is None else min(until, selection.until))


async def _removed(service: Service, selection: Selection, archive: Path | None, *, change: Change, total: int) -> int:
    from redrive.runtime.archive import Archive

    with nullcontext() if archive is None else Archive(archive) as into, Bar("prune", total=total) as bar:
        return await service.remove(
            selection, actor=change.who, note=change.note, archive=into, limit=change.limit, on_count=bar
        )


@spread
def erase(
    *,
    filters: Filters,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="With this header; may be given several times.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="Also in this file, besides those of the archive folder.",
            show_default=False,
        ),
    ] = None,
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    where: Where,
) -> None:
    """Erase one person's letters for good: bodies, headers, notes, audit, and the copies in archives.

    \b
    That it was done is recorded (who, when, how many) without what was erased. It asks with the count first. What a
    redrive job holds stays until that has ended. Keys of what was processed, messages that wait in queues, and logs
    are left: see the how-to on retention.

    \b
      redrive dlq erase --key order:7 --dry-run
      redrive dlq erase --tenant acme --header customer=4711 --archive old.jsonl --yes
    """
    pairs = [pair.partition("=") for pair in headers or ()]
    for name, equals, value in pairs:
        o.refuse_unless(equals and name, f'--header "{name}{equals}{value}" is not NAME=VALUE.')
    selection = filters.selection()
    selection = replace(selection, headers=(*selection.headers, *((name, value) for name, _, value in pairs)))
    found = where.run(lambda service: service.to_erase(selection, files=files or ()))
    if not dry_run:
        in_files = f"{found.archived} in {plural(found.files, 'archive')}"
        confirm(
            f"Erase {plural(found.letters, 'letter')}, and {in_files}, for good?",
            yes=yes or found.letters + found.archived == 0,
        )
        who = o.actor_name(actor)
        with Bar("erase", total=found.letters, is_quiet=where.is_json) as bar:
            found = where.run(lambda service: service.erase(selection, actor=who, files=files or (), on_count=bar))
    if where.is_json:
        from redrive.views import erasure_document

        print_json({"dry_run": dry_run, **erasure_document(found)})
        return
    verb = "Would erase" if dry_run else "Erased"
    say(f"{verb} {plural(found.letters, 'letter')}, and {found.archived} in {plural(found.files, 'archive')}.")
    if found.claims:
        say(f"{verb} {plural(found.claims, 'idempotency key')}.")
    if found.claims_kept:
        kept = plural(found.claims_kept, "idempotency key")
        note(f"{kept} stay until their time is over: late copies are known by them.")
    if found.held:
        note(f"{plural(found.held, 'letter')} stay: a redrive job holds them. Say it again once it has ended.")
    if found.unreadable:
        note(f"{plural(found.unreadable, 'line')} of archives cannot be read and stay: look at them yourself.")


@spread
def archives(*, where: Where) -> None:
    """List the archive files of this host: what lies in each. `dlq import` loads one again.

    \b
      redrive dlq archives --app orders:app
      redrive dlq archives --app orders:app --json
    """
    found = where.run(lambda service: service.archives())
    if where.is_json:
        from redrive.views import archive_document

        print_json({"archives": [archive_document(each) for each in found]})
        return
    if not found:
        note("No archives.")
        return
    now = time.time_ns() // 1_000_000
    table(
        ("file", "letters", "bytes", "oldest", "newest", "unreadable"),
        [
            (
                *(each.path, each.letters, each.size_bytes),
                *(ago(each.oldest_at, now), ago(each.newest_at, now), each.unreadable or None),
            )
            for each in found
        ],
        right=("letters", "bytes", "oldest", "newest", "unreadable"),
        whole=("file",),
    )
