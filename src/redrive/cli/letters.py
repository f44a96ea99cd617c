"""`redrive dlq list | show | stats | review | close | restore`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli import options as o
from redrive.cli.output import ago, facts, note, plural, print_json, say, table
from redrive.cli.prompts import Bar, confirm
from redrive.cli.target import on_service

if TYPE_CHECKING:
    from redrive.core.letters.selection import Selection
    from redrive.core.ports import LetterStats, Page
    from redrive.service import Group, LetterView, ReviewResult, Service

ID_SHOWN = 27
TOP = 20


def list_letters(
    targets: o.TargetsArgument = None,
    *,
    queue: o.QueueOption = None,
    state: o.StateOption = None,
    reason: o.ReasonOption = None,
    error_code: o.ErrorCodeOption = None,
    error_type: o.ErrorTypeOption = None,
    tenant: o.TenantOption = None,
    key: o.KeyOption = None,
    message_type: o.TypeOption = None,
    group: o.GroupOption = None,
    since: o.SinceOption = None,
    until: o.UntilOption = None,
    text: o.TextOption = None,
    ids: o.IdOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Letters on one page.")] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where the page before ended.", show_default=False)
    ] = None,
    app: o.AppOption = None,
    broker: o.BrokerOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """List dead letters, oldest first. Looking changes nothing.

    \b
      redrive dlq list                                  pending and reviewed ones
      redrive dlq list orders --reason VALIDATION_FAILED
      redrive dlq list --since 2h --tenant acme --json
      redrive dlq list --state closed --text "no such customer"
    """
    from redrive.cli.selection import make_selection

    selection = make_selection(
        targets, queue=queue, state=state, reason=reason, error_code=error_code, error_type=error_type, tenant=tenant,
        key=key, message_type=message_type, group=group, since=since, until=until, text=text, ids=ids,
    )  # fmt: skip
    if not selection.states and not selection.ids:
        selection = _open(selection)

    async def look(service: Service) -> Page:
        return await service.letters(selection, limit=limit, cursor=cursor)

    page = on_service(app, broker, look)
    if is_json:
        from redrive.views import page_document

        print_json(page_document(page))
        return
    _print_page(page)


def _open(selection: Selection) -> Selection:
    from dataclasses import replace

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
    )
    if page.cursor is not None:
        note(f"More: add --cursor {page.cursor}")


def show(
    letter_id: Annotated[str, typer.Argument(metavar="LETTER", help="The letter's id (dl_…).")],
    *,
    app: o.AppOption = None,
    broker: o.BrokerOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """Show one dead letter: why it died, every attempt, headers, body, and who did what with it.

    \b
      redrive dlq show dl_4f2a8c…
      redrive dlq show dl_4f2a8c… --json | jq .message.body
    """

    async def look(service: Service) -> LetterView:
        return await service.letter(letter_id)

    view = on_service(app, broker, look)
    from redrive.views import letter_view_document

    document = letter_view_document(view)
    if is_json:
        print_json(document)
        return
    from redrive.cli.letter_page import print_letter

    print_letter(document)


def stats(
    targets: o.TargetsArgument = None,
    *,
    queue: o.QueueOption = None,
    state: o.StateOption = None,
    reason: o.ReasonOption = None,
    error_code: o.ErrorCodeOption = None,
    error_type: o.ErrorTypeOption = None,
    tenant: o.TenantOption = None,
    key: o.KeyOption = None,
    message_type: o.TypeOption = None,
    group: o.GroupOption = None,
    since: o.SinceOption = None,
    until: o.UntilOption = None,
    text: o.TextOption = None,
    top: Annotated[int, typer.Option("--top", min=1, max=1_000, help="Entries per list.")] = TOP,
    app: o.AppOption = None,
    broker: o.BrokerOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """Count dead letters: by problem, queue, reason, tenant and review state.

    \b
      redrive dlq stats                      what is wrong right now
      redrive dlq stats orders --since 1d    what went wrong today
    """
    from redrive.cli.selection import make_selection

    selection = make_selection(
        targets, queue=queue, state=state, reason=reason, error_code=error_code, error_type=error_type, tenant=tenant,
        key=key, message_type=message_type, group=group, since=since, until=until, text=text,
    )  # fmt: skip

    async def look(service: Service) -> tuple[LetterStats, tuple[Group, ...]]:
        return await service.stats(selection, top=top), await service.groups(selection, limit=top)

    found, groups = on_service(app, broker, look)
    if is_json:
        from redrive.views import stats_document

        print_json(stats_document(found, groups))
        return
    _print_stats(found, groups)


def _print_stats(stats: LetterStats, groups: tuple[Group, ...]) -> None:
    if not stats.total:
        note("No dead letters.")
        return
    now = time.time_ns() // 1_000_000
    facts([("letters", stats.total), ("oldest open", ago(stats.oldest_at, now))])
    table(
        ("group", "problem", "queue", "letters", "first failed"),
        [(g.fingerprint, g.title, g.queue, g.count, ago(g.first_failed_at, now)) for g in groups],
        right=("letters", "first failed"),
    )
    for title, counts in (
        ("state", stats.by_state),
        ("reason", stats.by_reason),
        ("queue", stats.by_queue),
        ("tenant", stats.by_tenant),
    ):
        if counts:
            table((title, "letters"), list(counts.items()), right=("letters",))


def review(
    targets: o.TargetsArgument = None,
    *,
    queue: o.QueueOption = None,
    reason: o.ReasonOption = None,
    error_code: o.ErrorCodeOption = None,
    error_type: o.ErrorTypeOption = None,
    tenant: o.TenantOption = None,
    key: o.KeyOption = None,
    message_type: o.TypeOption = None,
    group: o.GroupOption = None,
    since: o.SinceOption = None,
    until: o.UntilOption = None,
    text: o.TextOption = None,
    ids: o.IdOption = None,
    is_all: Annotated[bool, typer.Option("--all", help="All pending letters.")] = False,
    limit: o.LimitOption = None,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    app: o.AppOption = None,
    broker: o.BrokerOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """Mark pending letters as reviewed: a person has looked at them.

    \b
      redrive dlq review dl_4f2a8c… --note "bad postcode, told the customer"
      redrive dlq review --group 9c1e… --yes
    """
    from redrive.cli.selection import make_selection

    selection = make_selection(
        targets, queue=queue, state=[o.State.PENDING], reason=reason, error_code=error_code, error_type=error_type,
        tenant=tenant, key=key, message_type=message_type, group=group, since=since, until=until, text=text, ids=ids,
    )  # fmt: skip
    _change(
        selection, "reviewed", "review", is_all=is_all, limit=limit, note_text=note_text, actor=actor,
        yes=yes, dry_run=dry_run, app=app, broker=broker, is_json=is_json,
    )  # fmt: skip


def close(
    targets: o.TargetsArgument = None,
    *,
    queue: o.QueueOption = None,
    state: o.StateOption = None,
    reason: o.ReasonOption = None,
    error_code: o.ErrorCodeOption = None,
    error_type: o.ErrorTypeOption = None,
    tenant: o.TenantOption = None,
    key: o.KeyOption = None,
    message_type: o.TypeOption = None,
    group: o.GroupOption = None,
    since: o.SinceOption = None,
    until: o.UntilOption = None,
    text: o.TextOption = None,
    ids: o.IdOption = None,
    is_all: Annotated[bool, typer.Option("--all", help="All letters that are open.")] = False,
    limit: o.LimitOption = None,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    app: o.AppOption = None,
    broker: o.BrokerOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """Close letters: nothing more will be done with them. Restorable until their time is over.

    \b
      redrive dlq close dl_4f2a8c… --note "order was cancelled"
      redrive dlq close orders --reason EXPIRED --dry-run
    """
    from redrive.cli.selection import make_selection

    selection = make_selection(
        targets, queue=queue, state=state, reason=reason, error_code=error_code, error_type=error_type, tenant=tenant,
        key=key, message_type=message_type, group=group, since=since, until=until, text=text, ids=ids,
    )  # fmt: skip
    _change(
        selection, "closed", "close", is_all=is_all, limit=limit, note_text=note_text, actor=actor, yes=yes,
        dry_run=dry_run, app=app, broker=broker, is_json=is_json,
    )  # fmt: skip


def restore(
    targets: o.TargetsArgument = None,
    *,
    queue: o.QueueOption = None,
    reason: o.ReasonOption = None,
    tenant: o.TenantOption = None,
    key: o.KeyOption = None,
    group: o.GroupOption = None,
    since: o.SinceOption = None,
    until: o.UntilOption = None,
    text: o.TextOption = None,
    ids: o.IdOption = None,
    is_all: Annotated[bool, typer.Option("--all", help="All closed letters.")] = False,
    limit: o.LimitOption = None,
    note_text: o.NoteOption = "",
    actor: o.ActorOption = None,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    app: o.AppOption = None,
    broker: o.BrokerOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """Make closed letters pending again.

    \b
      redrive dlq restore dl_4f2a8c… --note "closed by mistake"
    """
    from redrive.cli.selection import make_selection

    selection = make_selection(
        targets, queue=queue, state=[o.State.CLOSED], reason=reason, tenant=tenant, key=key, group=group, since=since,
        until=until, text=text, ids=ids,
    )  # fmt: skip
    _change(
        selection, "pending", "restore", is_all=is_all, limit=limit, note_text=note_text, actor=actor,
        yes=yes, dry_run=dry_run, app=app, broker=broker, is_json=is_json,
    )  # fmt: skip


def _change(
    selection: Selection,
    to: str,
    verb: str,
    *,
    is_all: bool,
    limit: int | None,
    note_text: str,
    actor: str | None,
    yes: bool,
    dry_run: bool,
    app: str | None,
    broker: str | None,
    is_json: bool,
) -> None:
    from redrive.cli.selection import refuse_everything
    from redrive.core.letters.letter import ReviewState

    refuse_everything(_without_states(selection), is_all=is_all, verb=verb)
    named = selection

    async def work(service: Service) -> ReviewResult | int:
        wanted = named if named.ids else _changeable(named, to)
        count = (await service.stats(wanted, top=1)).total
        count = count if limit is None else min(count, limit)
        if dry_run:
            return count
        confirm(f"{verb.capitalize()} {plural(count, 'letter')}?", yes=yes or count == 0)
        with Bar(verb, total=count, is_quiet=is_json) as bar:
            return await service.review(
                wanted, ReviewState(to), actor=o.actor_name(actor), note=note_text, limit=limit, on_count=bar
            )

    result = on_service(app, broker, work)
    if isinstance(result, int):
        _print_dry_run(result, verb, is_json=is_json)
        return
    _print_review(result, is_json=is_json)
    if result.refused or result.missing:
        raise typer.Exit(1)


def _without_states(selection: Selection) -> Selection:
    from dataclasses import replace

    return replace(selection, states=frozenset())


def _changeable(selection: Selection, to: str) -> Selection:
    """By filter only open letters are closed; the other verbs have their state in the filter already."""
    if to == "closed" and not selection.states:
        return _open(selection)
    return selection


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
