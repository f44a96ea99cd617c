"""`redrive dlq list | show | stats | review | close | restore`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from redrive.cli.groups import Change, Filters, Where, spread
from redrive.cli.in_place import InPlace, list_queues, queue_of
from redrive.cli.output import ago, counted, facts, note, plural, print_json, say, table
from redrive.cli.prompts import Bar, confirm

if TYPE_CHECKING:
    from redrive.core.letters.selection import Selection
    from redrive.core.ports import LetterStats, Page
    from redrive.service import Count, GroupCount, ReviewResult, Service

TOP = 20


@spread
def list_letters(
    *,
    filters: Filters,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Letters on one page.")] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where the page before ended.", show_default=False)
    ] = None,
    in_place: InPlace,
    where: Where,
) -> None:
    """List dead letters, oldest first. Looking changes nothing.

    With --broker amqp://… (or --in-place) it lists a broker's own dead-letter queues: how many letters lie in each,
    and for how long. `dlq peek` shows them.

    \b
      redrive dlq list                                  pending and reviewed ones
      redrive dlq list orders --reason VALIDATION_FAILED
      redrive dlq list --since 2h --tenant acme --json
      redrive dlq list --state closed --text "no such customer"
      redrive dlq list --broker amqp://user@host/vhost  the queues, in place
    """
    place = in_place.place(where)
    if place is not None:
        list_queues(place, queue_of(filters, needed=False), is_json=where.is_json)
        return
    selection = filters.selection()
    if not selection.states and not selection.ids:
        selection = _open(selection)

    page = where.run(lambda service: _full_page(service, selection, limit=limit, cursor=cursor))
    if where.is_json:
        from redrive.views import page_document

        print_json(page_document(page))
        return
    _print_page(page)


async def _full_page(service: Service, selection: Selection, *, limit: int, cursor: str | None) -> Page:
    """A page that is short only at the end: a person who looks for something rare wants to see it, not a cursor."""
    page = await service.letters(selection, limit=limit, cursor=cursor)
    found = list(page.letters)
    while len(found) < limit and page.cursor is not None:
        page = await service.letters(selection, limit=limit - len(found), cursor=page.cursor)
        found += page.letters
    return replace(page, letters=tuple(found))


def _open(selection: Selection) -> Selection:
    from redrive.core.letters.selection import OPEN_STATES

    return replace(selection, states=OPEN_STATES)


def _print_page(page: Page) -> None:
    if not page.letters:
        note("No dead letters.")
        return
    now = time.time_ns() // 1_000_000
    table(
        ("letter", "queue", "state", "reason", "why", "attempts", "dead for"),
        [
            (
                letter.id,
                letter.queue,
                letter.state,
                letter.reason_code,
                letter.reason_text,
                letter.attempt_count,
                ago(letter.dead_lettered_at, now),
            )
            for letter in page.letters
        ],
        right=("attempts", "dead for"),
        whole=("letter", "state"),
        spare=("why",),
    )
    if page.cursor is not None:
        note(f"More: add --cursor {page.cursor}")


@spread
def show(
    letter_id: Annotated[str, typer.Argument(metavar="LETTER", help="The letter's id (dl_…).")], *, where: Where
) -> None:
    """Show one dead letter: why it died, every attempt, headers, body, and who did what with it.

    \b
      redrive dlq show dl_4f2a8c…
      redrive dlq show dl_4f2a8c… --json | jq .message.body
    """
    from redrive.views import letter_view_document

    document = letter_view_document(where.run(lambda service: service.letter(letter_id)))
    if where.is_json:
        print_json(document)
        return
    from redrive.cli.letter_page import print_letter

    print_letter(document)


@spread
def stats(
    *,
    filters: Filters,
    top: Annotated[int, typer.Option("--top", min=1, max=1_000, help="Entries per list.")] = TOP,
    recount: Annotated[
        bool, typer.Option("--recount", help="First look whether the counts of groups are right; correct them.")
    ] = False,
    where: Where,
) -> None:
    """Count dead letters: by problem, queue, reason, tenant and review state.

    \b
      redrive dlq stats                      what is wrong right now
      redrive dlq stats orders --since 1d    what went wrong today
    """
    from redrive.service.looking import COUNTED

    selection = filters.selection()

    async def look(service: Service) -> tuple[LetterStats, tuple[GroupCount, ...], Count]:
        if recount:
            wrong = await service.recount_groups()
            note(
                f"The counts of {plural(wrong, 'group')} were wrong and are right now."
                if wrong
                else "Counts are right."
            )
        found = await service.stats(selection, top=top, up_to=COUNTED)
        groups = await service.group_counts(selection, limit=top, up_to=COUNTED)
        return found, groups, await service.died_last_hour(selection)

    found, groups, last_hour = where.run(look)
    if where.is_json:
        from redrive.views import stats_document

        print_json(stats_document(found, groups, last_hour=last_hour))
        return
    _print_stats(found, groups, last_hour)


def _print_stats(stats: LetterStats, groups: tuple[GroupCount, ...], last_hour: Count) -> None:
    if not stats.total and not stats.is_at_least:
        note("No dead letters.")
        return
    now = time.time_ns() // 1_000_000
    total = counted(stats.total, is_at_least=stats.is_at_least)
    lately = counted(last_hour.total, is_at_least=last_hour.is_at_least)
    facts([("letters", total), ("in the last hour", lately), ("oldest open", ago(stats.oldest_at, now))])
    if stats.is_at_least:
        note("Not all were looked at, only the oldest. Choose fewer for exact counts, with --since for example.")
    say("")
    table(
        ("group", "problem", "queue", "letters", "first failed"),
        [(g.fingerprint, g.title, g.queue, g.count, ago(g.first_failed_at, now)) for g in groups],
        right=("letters", "first failed"),
        whole=("group",),
    )
    for title, counts in (
        ("state", stats.by_state),
        ("reason", stats.by_reason),
        ("queue", stats.by_queue),
        ("tenant", stats.by_tenant),
    ):
        if counts:
            say("")
            table((title, "letters"), list(counts.items()), right=("letters",))


@spread
def review(*, filters: Filters, change: Change, where: Where) -> None:
    """Mark pending letters as reviewed: a person has looked at them.

    \b
      redrive dlq review dl_4f2a8c… --note "bad postcode, told the customer"
      redrive dlq review --group 9c1e… --yes
    """
    _change(filters, change, where, to="reviewed")


@spread
def close(*, filters: Filters, change: Change, where: Where) -> None:
    """Close letters: nothing more will be done with them. Restorable until their time is over.

    \b
      redrive dlq close dl_4f2a8c… --note "order was cancelled"
      redrive dlq close orders --reason EXPIRED --dry-run
    """
    _change(filters, change, where, to="closed")


@spread
def restore(*, filters: Filters, change: Change, where: Where) -> None:
    """Make closed letters pending again.

    \b
      redrive dlq restore dl_4f2a8c… --note "closed by mistake"
    """
    _change(filters, change, where, to="pending")


_VERBS: Final = {"reviewed": "review", "closed": "close", "pending": "restore"}
_FROM: Final = {"reviewed": ("pending",), "closed": ("pending", "reviewed"), "pending": ("closed",)}
"""Which letters a verb is about where neither ids nor states are given."""


def _change(filters: Filters, change: Change, where: Where, *, to: str) -> None:
    from redrive.core.letters.letter import ReviewState

    verb, selection = _VERBS[to], filters.selection()
    change.refuse_everything(selection, verb)
    if not selection.ids and not selection.states:
        selection = replace(selection, states=frozenset(map(ReviewState, _FROM[to])))

    async def work(service: Service) -> ReviewResult | int:
        total = (await service.stats(selection, top=1)).total
        count = total if change.limit is None else min(total, change.limit)
        if change.dry_run:
            return count
        confirm(f"{verb.capitalize()} {plural(count, 'letter')}?", yes=change.yes or count == 0)
        with Bar(verb, total=count, is_quiet=where.is_json) as bar:
            return await service.review(
                selection, ReviewState(to), actor=change.who, note=change.note, limit=change.limit, on_count=bar
            )

    result = where.run(work)
    if isinstance(result, int):
        _print_dry_run(result, verb, is_json=where.is_json)
        return
    _print_review(result, is_json=where.is_json)
    if result.refused or result.missing:
        raise typer.Exit(1)


def _print_dry_run(count: int, verb: str, *, is_json: bool) -> None:
    if is_json:
        print_json({"dry_run": True, "verb": verb, "letters": count})
    else:
        say(f"Would {verb} {plural(count, 'letter')}. Nothing was changed.")


def _print_review(result: ReviewResult, *, is_json: bool) -> None:
    if is_json:
        from redrive.views import review_document

        print_json(review_document(result))
        return
    say(f"{plural(result.changed, 'letter')} now {result.to}.")
    for refused in result.refusals:
        note(f"{refused.letter_id} was refused: {refused.why}")
    for missing in result.missing:
        note(f"{missing} does not exist.")
