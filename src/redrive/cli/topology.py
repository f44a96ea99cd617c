"""`redrive topology show | verify | plan | apply | export`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from redrive.cli import options as o
from redrive.cli.groups import spread
from redrive.cli.outcome import FOUND, carried_out
from redrive.cli.output import note, plural, print_json, say, table
from redrive.cli.prompts import confirm
from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.core.live import LiveBroker
    from redrive.core.topology.plan import Step
    from redrive.core.topology.verify import Report, Suppression
    from redrive.topologies import Planned, Reach, Source

Result = TypeVar("Result")

SCHEMES: Final = ("amqp://", "amqps://")

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="MODULE:APP, a definitions file (*.json), or the amqp:// URL of a broker with its management API.",
    ),
]


class Level(StrEnum):
    """Severities, as a choice that the shell completes."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """How a broker is asked for what AMQP does not tell."""

    management: Annotated[
        str | None,
        typer.Option(
            "--management",
            metavar="URL",
            help="The management API (default: the broker's host, port 15672; 15671 with TLS).",
            show_default=False,
        ),
    ] = None
    is_alone: Annotated[
        bool, typer.Option("--no-management", help="AMQP alone: bindings and policies are not known then.")
    ] = False
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            metavar="FILE",
            help="Where a migration remembers what it moved (default: a file of yours).",
            show_default=False,
        ),
    ] = None

    def reach(self, url: str) -> Reach:
        """The broker of this URL."""
        from redrive.topologies import Reach

        return Reach(url=url, management=self.management, is_alone=self.is_alone, journal=self.journal)


def _source(spec: str, management: Management) -> Source:
    """The topology a command is about. Raises `ConfigurationError` saying what it could be."""
    from redrive.topologies import of_app, of_broker, of_file

    if spec.startswith(SCHEMES):
        import asyncio

        return asyncio.run(of_broker(management.reach(spec)))
    if spec.endswith(".json") or Path(spec).is_file():
        return of_file(Path(spec))
    o.refuse_unless("://" not in spec, f'"{spec.partition("://")[0]}://" is no broker with a topology: amqp:// is.')
    from redrive.cli.target import load_app

    return of_app(load_app(spec))


# ---------------------------------------------------------------------------------------------------- show


@spread
def show(
    source: SourceArgument,
    *,
    as_mermaid: Annotated[bool, typer.Option("--mermaid", help="A picture, as Mermaid text.")] = False,
    management: Management,
    is_json: o.JsonOption = False,
) -> None:
    """Show exchanges, queues, where messages go from them, and how redrive retries on them.

    \b
      redrive topology show orders:app
      redrive topology show definitions.json --mermaid > topology.mmd
      redrive topology show amqp://user@host/vhost --json
    """
    from redrive.topologies import picture, shown

    found = carried_out(lambda: _source(source, management), is_json=is_json)
    if as_mermaid:
        text = picture(found)
        print_json({"mermaid": text}) if is_json else say(text.rstrip("\n"))
        return
    rows = shown(found)
    if is_json:
        print_json({"source": found.name, "rows": rows})
        return
    columns = ("kind", "name", "what", "to", "settings")
    table(columns, [tuple(row[column] for column in columns) for row in rows], whole=("name",))


# ---------------------------------------------------------------------------------------------------- verify


@spread
def verify(
    source: SourceArgument,
    *,
    broker_version: Annotated[
        str | None,
        typer.Option(
            "--broker-version",
            metavar="X.Y.Z",
            help="RabbitMQ it is for (default: the file's or the broker's own, else the newest).",
            show_default=False,
        ),
    ] = None,
    consumers: Annotated[
        list[str] | None,
        typer.Option(
            "--consumer",
            metavar="QUEUE",
            help="A queue somebody reads; may be given several times (default: guessed).",
            show_default=False,
        ),
    ] = None,
    fail_on: Annotated[
        Level, typer.Option("--fail-on", help="Exit with 1 where something this bad, or worse, is found.")
    ] = Level.WARNING,
    severity: Annotated[Level, typer.Option("--severity", help="Tell nothing milder.")] = Level.INFO,
    suppress: Annotated[
        Path | None,
        typer.Option(
            "--suppress",
            metavar="FILE",
            help="Findings to live with, each with its reason (TOML or JSON).",
            show_default=False,
        ),
    ] = None,
    proof: Annotated[
        bool, typer.Option("--proof", help="Also tell what becomes of a message, queue by queue.")
    ] = False,
    management: Management,
    is_json: o.JsonOption = False,
) -> None:
    """Find every way in which messages can be lost, late, doubled or stuck; prove it where there is none.

    \b
    Exit codes: 0 nothing as bad as --fail-on, 1 something, 2 the command did not work.

    \b
      redrive topology verify orders:app
      redrive topology verify definitions.json --fail-on error --json
      redrive topology verify amqp://user@host/vhost --suppress suppressions.toml
    """
    from redrive.topologies import checked

    def check() -> Report:
        found = _source(source, management)
        return checked(
            found, version=broker_version, consumers=tuple(consumers or ()), suppress=_suppressions(suppress)
        )

    report = carried_out(check, is_json=is_json)
    if is_json:
        print_json(report.document())
    else:
        _print_report(report, severity, proof=proof)
    if _is_bad(report, fail_on):
        raise typer.Exit(FOUND)


def _suppressions(path: Path | None) -> tuple[Suppression, ...]:
    from redrive.core.topology.verify import read_suppressions

    if path is None:
        return ()
    try:
        return read_suppressions(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f'--suppress "{path}" cannot be read ({type(error).__name__}).') from None


def _print_report(report: Report, level: Level, *, proof: bool) -> None:
    from redrive.core.topology.verify import Severity, render

    severity = Severity.ERROR if level is Level.NEVER else Severity(level.value)
    say(render(report, severity=severity, with_proof=True if proof else None).rstrip("\n"))


def _is_bad(report: Report, level: Level) -> bool:
    from redrive.core.topology.verify import Severity

    return level is not Level.NEVER and bool(report.at_least(Severity(level.value)))


# ---------------------------------------------------------------------------------------------------- plan, apply


BrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="URL",
        help="The broker to compare with, amqp://user@host/vhost (default: the app's own).",
        show_default=False,
    ),
]


def _on_broker(
    source: Source, broker: str | None, *, management: Management, action: Callable[[LiveBroker], Awaitable[Result]]
) -> Result:
    import asyncio

    from redrive.topologies import reached

    url = broker or source.broker
    o.refuse_unless(url is not None, "Which broker?", "Name it with --broker amqp://user@host/vhost.")
    assert url is not None, "asked for"

    async def work() -> Result:
        async with reached(management.reach(url)) as live:
            return await action(live)

    return asyncio.run(work())


@spread
def plan(
    source: SourceArgument,
    *,
    broker: BrokerOption = None,
    management: Management,
    is_json: o.JsonOption = False,
) -> None:
    """Compare a topology with a broker: what is missing, what is there with other settings, what else is there.

    \b
    Nothing is changed. `+` is declared by `apply`; `~` is there with other settings, which no broker changes in place:
    `apply --migrate` replaces such a queue with all its messages; `-` is there and not wanted, and stays.
    Exit codes: 0 everything is as wanted, 1 it is not, 2 the command did not work.

    \b
      redrive topology plan orders:app
      redrive topology plan definitions.json --broker amqp://user@host/vhost --json
    """
    from redrive.topologies import planned, planned_document

    def compare() -> Planned:
        found = _source(source, management)
        return _on_broker(found, broker, management=management, action=lambda live: planned(live, found))

    result = carried_out(compare, is_json=is_json)
    if is_json:
        print_json(planned_document(result))
    else:
        _print_planned(result)
    if not result.is_clean:
        raise typer.Exit(FOUND)


def _print_planned(planned: Planned) -> None:
    for text in planned.there.notes:
        note(text)
    for step in planned.plan.steps:
        _print_step(step)
    for migration in planned.migrations:
        say(f'Migration of queue "{migration.queue.name}", in {plural(len(migration.steps), "step")}:')
        for number, each in enumerate(migration.steps, 1):
            say(f"  {number}. {each.text}")
        for text in migration.before:
            say(f"  Before: {text}")
        for text in migration.risks:
            say(f"  Risk: {text}")
    found = planned.plan
    if planned.is_clean:
        say(f"No change: {planned.place} has everything as wanted.")
        return
    missing = f"{len(found.changes)} to declare, {len(planned.refused)} with other settings"
    say(f"{planned.place}: {missing}, {len(found.extras)} not wanted.")


def _print_step(step: Step) -> None:
    say(f"{step.mark} {step.kind} {step.name}")
    for difference in step.differences:
        say(f"    {difference}")
    say(f"    {step.consequence}")
    for text in step.notes:
        say(f"    {text}")


@spread
def apply(
    source: SourceArgument,
    *,
    broker: BrokerOption = None,
    migrate: Annotated[
        bool,
        typer.Option("--migrate", help="Replace queues whose arguments changed, with all the messages in them."),
    ] = False,
    management: Management,
    yes: o.YesOption = False,
    dry_run: o.DryRunOption = False,
    is_json: o.JsonOption = False,
) -> None:
    """Declare what is missing, and compare again. Repeating it changes nothing; nothing is ever forced.

    \b
    Where something is there with other settings, nothing at all is declared (exit code 1). With --migrate such queues
    are replaced, their messages kept: stop the workers first. Killed half-way, run it again: it goes on.
    Exit codes: 0 everything is as wanted now, 1 it is not, 2 the command did not work.

    \b
      redrive topology apply orders:app --dry-run
      redrive topology apply orders:app --yes
      redrive topology apply definitions.json --broker amqp://user@host/vhost --migrate
    """
    from redrive.topologies import applied, planned, planned_document

    found = carried_out(lambda: _source(source, management), is_json=is_json)
    before = carried_out(
        lambda: _on_broker(found, broker, management=management, action=lambda live: planned(live, found)),
        is_json=is_json,
    )
    is_refused = bool(before.for_a_person if migrate else before.refused)
    if dry_run or is_refused or (before.is_clean and before.there.is_complete):
        _finish(before, is_json=is_json, is_refused=is_refused, dry_run=dry_run)
        return
    if not is_json:
        _print_planned(before)
    confirm(_question(before, migrate=migrate), yes=yes)
    tell = _silent if is_json else note
    after = carried_out(
        lambda: _on_broker(
            found, broker, management=management, action=lambda live: applied(live, found, migrate=migrate, said=tell)
        ),
        is_json=is_json,
    )
    if is_json:
        print_json({**planned_document(after), "applied": [f"{s.mark} {s.kind} {s.name}" for s in before.plan.changes]})
    else:
        say("Done." if after.is_clean else "Done, and the broker still differs:")
        if not after.is_clean:
            _print_planned(after)
    if not after.is_clean:
        raise typer.Exit(FOUND)


def _silent(_: str) -> None:
    """Under --json there is one document, at the end."""


def _question(planned: Planned, *, migrate: bool) -> str:
    moves = f", migrate {plural(len(planned.migrations), 'queue')}" if migrate and planned.migrations else ""
    return f"Declare {plural(len(planned.plan.changes), 'thing')}{moves} on {planned.place}?"


def _finish(planned: Planned, *, is_json: bool, is_refused: bool, dry_run: bool) -> None:
    from redrive.topologies import planned_document, refusal_text

    if is_json:
        print_json({**planned_document(planned), "applied": [], "dry_run": dry_run})
    else:
        _print_planned(planned)
        if is_refused:
            note(refusal_text(planned.refused))
        elif dry_run:
            note("Nothing was changed.")
    if is_refused or not planned.is_clean:
        raise typer.Exit(FOUND)


# ---------------------------------------------------------------------------------------------------- export


@spread
def export(
    source: SourceArgument,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it there (default: print it).", show_default=False),
    ] = None,
    broker_version: Annotated[
        str | None,
        typer.Option(
            "--broker-version",
            metavar="X.Y.Z",
            help="RabbitMQ it is for: from 4.0 on redrive's quorum queues say that they have no delivery limit.",
            show_default=False,
        ),
    ] = None,
    no_vhost: Annotated[
        bool, typer.Option("--no-vhost", help="Name no virtual host, so that it can be imported into any.")
    ] = False,
    management: Management,
    is_json: o.JsonOption = False,
) -> None:
    """Write a definitions file that the broker itself imports: the same topology gives the same bytes.

    \b
    Users and passwords are not in it. Compare after importing (`redrive topology plan`): a broker answers that all is
    well also where it left a queue as it was.

    \b
      redrive topology export orders:app --broker-version 4.1.0 -o definitions.json
      rabbitmqctl import_definitions definitions.json
    """
    from redrive.topologies import exported

    def work() -> str:
        return exported(_source(source, management), version=broker_version, names_vhost=not no_vhost)

    text = carried_out(work, is_json=is_json)
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text, "utf-8")
    if is_json:
        print_json({"file": str(output), "bytes": len(text.encode())})
    else:
        note(f'Written to "{output}".')
