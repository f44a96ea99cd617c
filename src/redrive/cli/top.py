"""`redrive top`: queues, dead letters, tenants and redrives, again and again.

On a terminal it stays until q or Ctrl-C; into a pipe, with `--once` or `--json` it looks once. It reads through the
service, a few bounded calls a look, and rests at least as long as `RESTS` looks take, so that it is never the load it
shows.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from redrive.cli import options as o
from redrive.cli.groups import Where, spread
from redrive.cli.output import ago, counted, print_json, safe

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from redrive.runtime.app import Redrive
    from redrive.service import Overview

MIN_EVERY_S: Final = 0.5
RESTS: Final = 4
TITLE_CHARS: Final = 200
WIDTH_WITHOUT_TERMINAL: Final = 120

NAMES: Final = frozenset({"queue", "group", "tenant"})
"""Columns that are cut where there is not room for all."""

Row = tuple[object, ...]


@spread
def top(
    *,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="Between two looks, at least 500ms.")] = "2s",
    rows: Annotated[int, typer.Option("--top", min=1, max=50, help="Rows of each list.")] = 5,
    once: Annotated[bool, typer.Option("--once", help="Look once, as into a pipe.")] = False,
    where: Where,
) -> None:
    """Watch what is going on: queues and their rates, dead letters by group and tenant, redrives. End it with q.

    \b
      redrive top --app orders:app
      redrive top --app orders:app --every 5s --top 10
      redrive top --app orders:app --once --json
    """
    age = o.parse_duration(every, "--every")
    every_s = 0.0 if age is None else age.total_seconds()
    o.refuse_unless(every_s >= MIN_EVERY_S, f"--every {every} is too often: at least 500ms.")
    if where.is_json:
        from redrive.views import overview_document

        print_json(overview_document(where.run(lambda service: service.overview(top=rows))))
        return
    if once or not sys.stdout.isatty():
        look = where.run(lambda service: service.overview(top=rows))
        console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL).print(shown(look, None, rows=rows))
        return
    import asyncio

    from redrive.cli.target import find_app

    app = find_app(where.app, where.broker)
    with suppress(KeyboardInterrupt):
        asyncio.run(_stay(app, every_s=every_s, rows=rows))


def console(*, width: int | None = None) -> Console:
    """Where it is shown; a stranger's text is never markup."""
    from rich.console import Console

    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


async def _stay(app: Redrive, *, every_s: float, rows: int) -> None:
    import asyncio

    from rich.live import Live

    from redrive.errors import RedriveError
    from redrive.service import Service

    done = asyncio.Event()
    before: Overview | None = None
    async with app:
        service = Service(app)
        with _keys(done.set), Live(console=console(), screen=True, auto_refresh=False) as live:
            while not done.is_set():
                started = time.monotonic()
                try:
                    look = await service.overview(top=rows)
                    live.update(shown(look, before, rows=rows), refresh=True)
                    before = look
                except RedriveError as error:
                    live.update(_text(f"{error.text} Trying again; q ends."), refresh=True)
                rest_s = max(every_s, RESTS * (time.monotonic() - started))
                with suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), rest_s)


@contextmanager
def _keys(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when q is typed; the terminal is as it was afterwards. Nothing where nobody can type."""
    if not sys.stdin.isatty():
        yield
        return
    import asyncio
    import termios
    import tty

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)

    def typed() -> None:
        keys = os.read(descriptor, 64)
        if not keys or b"q" in keys.lower():
            loop.remove_reader(descriptor)
            stop()

    try:
        tty.setcbreak(descriptor)
        loop.add_reader(descriptor, typed)
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# ---------------------------------------------------------------------------------------------------- what is shown


def shown(look: Overview, before: Overview | None, *, rows: int) -> RenderableType:
    """One look; with the one before it, also what changed in a second."""
    from rich.console import Group

    stats = look.stats
    oldest = ago(stats.oldest_at, look.at) or "none"
    lately = counted(look.last_hour.total, is_at_least=look.last_hour.is_at_least)
    head = f"dead letters {stats.total}   in the last hour {lately}   oldest {oldest}"
    parts: list[RenderableType] = [_text(head), _queues(look, before, rows=rows)]
    if look.groups:
        listed = [
            (each.waiting, ago(each.last_seen, look.at), each.queue, each.title[:TITLE_CHARS]) for each in look.groups
        ]
        parts.append(_table(("waiting", "last", "queue", "group"), listed[:rows], right=("waiting", "last")))
    tenants = _tenants(look)[:rows]
    if tenants:
        parts.append(
            _table(("tenant", "queue", "waiting", "behind", "dead"), tenants, right=("waiting", "behind", "dead"))
        )
    if look.jobs:
        jobs = [_job(look, before, number) for number in range(min(rows, len(look.jobs)))]
        parts.append(_table(("redrive", "state", "sent", "/s", "left", "skipped"), jobs, right=("sent", "/s", "left")))
    return Group(*parts)


def _queues(look: Overview, before: Overview | None, *, rows: int) -> RenderableType:
    known = {} if before is None else {each.queue: each for each in before.queues}
    busiest = sorted(look.queues, key=lambda each: (-(each.ready + each.leased + each.dead), each.queue))
    listed: list[Row] = []
    for each in busiest[: 2 * rows]:
        was = known.get(each.queue)
        change = None if was is None or before is None else per_s(each.ready - was.ready, look.at - before.at)
        held = "paused" if each.paused is not None else (f"{each.quarantined} aside" if each.quarantined else None)
        waits = ago(each.oldest_ready_at, look.at)
        listed.append((each.queue, each.ready, change, each.scheduled, each.leased, each.dead, waits, held))
    if len(look.queues) > len(listed):
        listed.append((f"and {len(look.queues) - len(listed)} more", *[None] * 7))
    columns = ("queue", "ready", "/s", "later", "in hand", "dead", "waits", "held")
    return _table(columns, listed, right=columns[1:7])


def _tenants(look: Overview) -> list[Row]:
    """Who waits in fair queues, then who has most dead letters."""
    waiting: list[Row] = []
    dead = dict(look.stats.by_tenant)
    for queue, standings in look.tenants.items():
        for each in standings:
            rounds = each.record.rounds_without_processing
            waiting.append((each.name, queue, each.waiting, rounds, dead.pop(each.name, None)))
    return [*waiting, *((name, None, None, None, count) for name, count in dead.items() if name != "-")]


def _job(look: Overview, before: Overview | None, number: int) -> Row:
    job = look.jobs[number]
    was = None if before is None else next((each for each in before.jobs if each.id == job.id), None)
    rate = None if was is None or before is None else per_s(job.counts.sent - was.counts.sent, look.at - before.at)
    return (job.id, str(job.state), job.counts.sent, rate, job.counts.pending, job.counts.skipped)


def per_s(change: int, took_ms: int) -> str | None:
    """A change as so many per second; None where no time went by.

    >>> per_s(-30, 2_000), per_s(1, 4_000), per_s(0, 1_000), per_s(1, 0)
    ('-15', '+0.2', '0', None)
    """
    if took_ms <= 0:
        return None
    rate = change * 1_000 / took_ms
    return "0" if not change else f"{rate:+.0f}" if abs(rate) >= 1 else f"{rate:+.1f}"


def _text(text: str) -> RenderableType:
    from rich.text import Text

    return Text(safe(text), no_wrap=True, overflow="ellipsis")


def _table(columns: tuple[str, ...], rows: Sequence[Row], *, right: tuple[str, ...]) -> RenderableType:
    """One line a row, however narrow it is: names share what the rest leaves and are cut, the rest stays whole."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    lines = [["" if value is None else safe(str(value)) for value in row] for row in rows]
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, expand=True)
    for place, column in enumerate(columns):
        width = max(len(column), *(len(line[place]) for line in lines)) if lines else len(column)
        share = 1 if column in NAMES else None
        found.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=share,
            width=None if share else width,
        )
    for line in lines:
        found.add_row(*(Text(cell) for cell in line))
    return found
