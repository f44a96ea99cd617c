"""`redrive dlq collect`: a broker's own dead letters into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from redrive.cli.groups import Where, spread
from redrive.cli.output import note, plural, print_json, say, table
from redrive.cli.prompts import Bar

if TYPE_CHECKING:
    from collections import Counter

    from redrive.core.letters.letter import Letter
    from redrive.runtime.collector import Collected
    from redrive.service import Service

SHOWN = 20


@spread
def collect(
    queue: Annotated[
        str, typer.Argument(metavar="QUEUE", help="A dead-letter queue of the broker; on Redis, the queue itself.")
    ],
    *,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many messages.", show_default=False),
    ] = None,
    as_queue: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="QUEUE",
            help="Where messages came from that do not say it; they are sent back there.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on for ever; Ctrl-C ends it and loses nothing.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the first messages would become; take nothing.")
    ] = False,
    where: Where,
) -> None:
    """Take what lies in a broker's own dead-letter queue into the store: to be searched, grouped and redriven there.

    Whoever made them: what RabbitMQ itself, redrive, NServiceBus, MassTransit, Spring and others wrote of the death is
    read. On Redis it takes what has failed in a BullMQ queue. Each message is stored before it is acknowledged; killed
    in between, it is the same letter the next time.

    \b
      redrive dlq collect orders.dlq --broker amqp://user@host/vhost --dry-run
      redrive dlq collect orders.dlq --broker amqp://user@host/vhost
      redrive dlq collect orders --broker redis://host/0
      redrive dlq groups --broker amqp://user@host/vhost
    """
    if dry_run:
        found, left = where.run(
            lambda service: service.collectable(queue, limit=SHOWN, as_queue=as_queue), may_create=True
        )
        _show_dry(found, left, is_json=where.is_json)
        return

    async def work(service: Service) -> Collected:
        taken, is_over = 0, False
        with Bar("collect", is_quiet=where.is_json) as bar:

            def tell(done: Collected) -> None:
                nonlocal taken
                taken = done.taken
                bar(taken, limit)

            try:
                done = await service.collect(queue, once=not follow, limit=limit, as_queue=as_queue, on_collected=tell)
                is_over = True
            finally:
                if not is_over:
                    note(
                        f"Ended early: {plural(taken, 'message')} taken, each stored first; what was in hand lies "
                        "where it was, or is the same letter the next time. Nothing is lost. Go on: the same command."
                    )
            return done

    _show(where.run(work, may_create=True), is_json=where.is_json)


def _show_dry(letters: tuple[Letter, ...], left: Counter[str], *, is_json: bool) -> None:
    if is_json:
        from redrive.views import found_document

        print_json(found_document(letters, left))
        return
    table(
        ("message", "from", "reason", "why", "attempts", "group"),
        [
            (each.message.id, each.queue, each.reason.code, each.reason.text, each.attempt_count, each.fingerprint)
            for each in letters
        ],
        right=("attempts",),
        spare=("why",),
    )
    _show_left(left)
    note("Nothing was taken." if letters else "There is nothing to take.")


def _show(done: Collected, *, is_json: bool) -> None:
    if is_json:
        from redrive.views import collected_document

        print_json(collected_document(done))
        return
    say(f"{plural(done.taken, 'message')} taken, {plural(done.new, 'letter')} new in the store.")
    _show_left(done.left)
    if done.by_queue:
        table(("came from", "letters"), done.by_queue.most_common(SHOWN), right=("letters",))
        note(f"{plural(len(done.by_group), 'problem')}. See: redrive dlq groups")


def _show_left(left: Counter[str]) -> None:
    for why, count in left.most_common():
        note(f"{plural(count, 'message')} left alone: {why}")
