"""`redrive dlq list | peek | redrive` on dead letters where they lie on a RabbitMQ, without collecting them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from redrive.cli import options as o
from redrive.cli.groups import Change, Filters, Sending, Where, spread
from redrive.cli.output import ago, facts, note, plural, print_json, say, table
from redrive.cli.prompts import Bar, confirm

if TYPE_CHECKING:
    from redrive.core.in_place import Standing
    from redrive.core.live import Look, SendBack, SentBack, Waiting
    from redrive.in_place import Place

SCHEMES: Final = ("amqp://", "amqps://")
STAYED_SHOWN: Final = 10
BODY_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """Whether a command works on a broker's own queue instead of the store, and how that broker is reached."""

    is_in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="On the broker's own dead-letter queue, not on the store. Implied by --broker amqp://….",
        ),
    ] = False
    management: Annotated[
        str | None,
        typer.Option(
            "--management",
            metavar="URL",
            help="In place: the management API (default: the broker's host, port 15672).",
            show_default=False,
        ),
    ] = None
    is_alone: Annotated[
        bool, typer.Option("--no-management", help="In place: AMQP alone, without the management API.")
    ] = False
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            metavar="FILE",
            help="In place: where a redrive remembers what it sent (default: a file of yours).",
            show_default=False,
        ),
    ] = None

    def place(self, where: Where) -> Place | None:
        """The broker to work on; None: the store is meant. Raises `ConfigurationError` where it is no RabbitMQ."""
        is_named = where.broker is not None and where.broker.startswith(SCHEMES)
        if not is_named and not self.is_in_place:
            return None
        from redrive.cli.target import find_app
        from redrive.core.topology.model import EMPTY
        from redrive.in_place import Place
        from redrive.topologies import Reach

        found = find_app(where.app, where.broker)
        o.refuse_unless(
            found.settings.broker.startswith(SCHEMES),
            "--in-place works on a RabbitMQ only: other brokers have no dead letters beside the store.",
        )
        reach = Reach(
            url=found.settings.broker, management=self.management, is_alone=self.is_alone, journal=self.journal
        )
        return Place(reach=reach, topology=EMPTY if where.app is None else found.wired_topology())


def queue_of(filters: Filters, *, needed: bool = True) -> str | None:
    """The queue a command in place is about. Raises `ConfigurationError` for filters, which need the store."""
    bare = Filters(targets=filters.targets, queue=filters.queue)
    o.refuse_unless(
        filters == bare,
        "Dead letters in place have no filters: a broker hands its messages over one after the other.",
        "Leave the filters out, and say --limit for the oldest few.",
    )
    queue = filters.selection().queue
    o.refuse_unless(queue is not None or not needed, "Which queue? Name the dead-letter queue as the broker calls it.")
    return queue


# ---------------------------------------------------------------------------------------------------- list


def list_queues(place: Place, queue: str | None, *, is_json: bool) -> None:
    """How dead-letter queues stand."""
    import asyncio

    from redrive.in_place import standing_document, standings

    found = asyncio.run(standings(place, queue))
    if is_json:
        print_json({"queues": [standing_document(each) for each in found]})
    elif not found:
        note("No dead-letter queues.")
    else:
        _print_standings(found)


def _print_standings(found: tuple[Standing, ...]) -> None:
    now = time.time_ns() // 1_000_000
    table(
        ("queue", "letters", "oldest", "consumers", "type"),
        [(each.queue, each.depth, ago(each.oldest_at, now), each.consumers, each.kind or "?") for each in found],
        right=("letters", "oldest", "consumers"),
        whole=("queue",),
    )
    for text in dict.fromkeys(each.note for each in found if each.note):
        note(text)


# ---------------------------------------------------------------------------------------------------- peek


@spread
def peek(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The dead-letter queue, as the broker calls it.")],
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Messages, oldest first.")] = 20,
    force: Annotated[
        bool, typer.Option("--force", help="Also where each look counts towards the queue's delivery limit.")
    ] = False,
    in_place: InPlace,
    where: Where,
) -> None:
    """Look at dead letters where they lie on a RabbitMQ, also in queues redrive did not make.

    \b
    Nothing is taken: order, depth and counts stay. Where the broker counts each look towards a delivery limit, after
    which it drops the message, this refuses and says so.

    \b
      redrive dlq peek q.audit.dlq --broker amqp://user@host/vhost
      redrive dlq peek q.audit.dlq --app shop:app --in-place --limit 3 --json
    """
    import asyncio

    from redrive.in_place import look_document, peeked

    place = in_place.place(where)
    o.refuse_unless(
        place is not None,
        "Peeking is for queues of a RabbitMQ: say --broker amqp://…, or --in-place with an app on one.",
        "Letters in the store are shown by: redrive dlq list, redrive dlq show",
    )
    assert place is not None
    look = asyncio.run(peeked(place, queue, limit=limit, is_forced=force))
    if where.is_json:
        print_json(look_document(look))
        return
    _print_look(look)


def _print_look(look: Look) -> None:
    now = time.time_ns() // 1_000_000
    for message in look.messages:
        _print_message(message, now)
    shown, depth = len(look.messages), look.standing.depth
    note(f"{plural(shown, 'message')} of {depth}. They lie where they lay." if shown else "No messages.")


def _print_message(message: Waiting, now: int) -> None:
    from redrive.in_place import look_text

    facts(
        [
            (f"#{message.position}", message.message_id or "(no id)"),
            ("from", message.queue),
            ("reason", message.reason_code),
            ("why", message.reason_text),
            ("attempts", message.attempts or None),
            ("redriven", message.redriven or None),
            ("dead for", ago(message.dead_since, now)),
            ("routing key", message.routing_key),
            ("properties", look_text(message.properties)),
            ("headers", look_text(message.headers)),
            ("body", look_text(message.body)[:BODY_CHARS]),
        ]
    )
    say("")


# ---------------------------------------------------------------------------------------------------- redrive


def redrive_in_place(place: Place, filters: Filters, sending: Sending, *, change: Change, is_json: bool) -> None:
    """Send back what lies in a broker's dead-letter queue."""
    import asyncio

    from redrive.in_place import sent_back, sent_back_document, standings

    queue = queue_of(filters)
    assert queue is not None, "asked for"
    o.refuse_unless(not sending.detach, "--detach needs the store: nobody else goes on with a redrive in place.")
    o.refuse_unless(sending.request_key is None, "--request-key needs the store: run it again, it sends nothing twice.")
    o.refuse_unless(not sending.even_if, "--even-if needs the store: in place neither keys nor their order are known.")
    o.refuse_unless(
        sending.canary is None, "--canary needs the store: collect the letters first (redrive dlq collect)."
    )
    o.refuse_unless(sending.edit is None, "--edit needs the store: collect the letters first (redrive dlq collect).")
    (standing,) = asyncio.run(standings(place, queue))
    count = standing.depth if change.limit is None else min(standing.depth, change.limit)
    if change.dry_run:
        _print_dry_run(queue, count, is_json=is_json)
        return
    confirm(f'Send {plural(count, "message")} of queue "{queue}" back?', yes=change.yes or count == 0)
    with Bar("redrive", total=count, is_quiet=is_json) as bar:
        result = asyncio.run(sent_back(place, queue, _what(sending, change), on_count=bar))
    if is_json:
        print_json(sent_back_document(result))
    else:
        _print_sent(result)
    if result.error is not None or result.stayed:
        raise typer.Exit(1)


def _what(sending: Sending, change: Change) -> SendBack:
    from redrive.core.live import SendBack

    return SendBack(
        actor=change.who,
        limit=change.limit,
        to=sending.to,
        keeps_attempts=sending.keep_attempts,
        keeps_ttl=sending.keep_ttl,
        is_forced=sending.force,
        rate_per_s=o.parse_rate(sending.rate),
    )


def _print_dry_run(queue: str, count: int, *, is_json: bool) -> None:
    if is_json:
        print_json({"dry_run": True, "queue": queue, "messages": count})
    else:
        say(f'Would send {plural(count, "message")} of queue "{queue}" back. Nothing was changed.')


def _print_sent(result: SentBack) -> None:
    targets = ", ".join(f"{count} to {queue}" for queue, count in result.targets.items())
    say(f"Batch {result.batch}: {plural(result.moved, 'message')} moved{f' ({targets})' if targets else ''}.")
    if result.is_resumed:
        note(f"It went on where an earlier run was stopped; {result.found} had been sent already and were not again.")
    if result.error is not None:
        note(result.error)
    for each in result.stayed[:STAYED_SHOWN]:
        note(f"Message {each.position} ({each.message_id or 'no id'}) stays: {each.why}")
    if len(result.stayed) > STAYED_SHOWN:
        note(f"… and {len(result.stayed) - STAYED_SHOWN} more stay.")
