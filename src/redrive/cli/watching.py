"""`redrive doctor | alerts | metrics`."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from redrive.cli import options as o
from redrive.cli.groups import Where, spread
from redrive.cli.outcome import FOUND, carried_out
from redrive.cli.output import facts, note, print_error, print_json, say, table
from redrive.core.alerts import BY_NAME, DEFAULT_GROUPS, Group
from redrive.core.doctor import Level
from redrive.core.units import Millis, duration_ms
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.alerting import Look, Wanted
    from redrive.doctor import Report
    from redrive.runtime.app import Redrive

MIN_EVERY_MS: Final = 1_000
_MB: Final = 1024 * 1024


class FailOn(StrEnum):
    """Levels, as a choice that the shell completes."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    NEVER = "never"


GroupsOption = Annotated[
    list[Group] | None,
    typer.Option(
        "--group",
        help="Rules of this group; may be given several times (default: dead-letters and redis).",
        show_default=False,
    ),
]


# ---------------------------------------------------------------------------------------------------- doctor


@spread
def doctor(
    *,
    strict: Annotated[
        bool, typer.Option("--strict", help="Nothing accepted may be lost in a crash: everysec is not enough.")
    ] = False,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="Exit with 1 where something this bad, or worse, is found.")
    ] = FailOn.ERROR,
    where: Where,
) -> None:
    """Look for what loses messages: settings of the Redis server, its memory and errors, files, redrive's own settings.

    \b
    It changes nothing. Each finding says what is at risk and the command that helps.
    Exit codes: 0 nothing as bad as --fail-on, 1 something, 2 the command did not work.

    \b
      redrive doctor --app orders:app
      redrive doctor --broker redis://localhost:6379/0 --strict
      redrive doctor --app orders:app --json
    """
    import asyncio

    from redrive.cli.target import find_app
    from redrive.doctor import examine

    report = carried_out(
        lambda: asyncio.run(examine(find_app(where.app, where.broker, may_create=True), strict=strict)),
        is_json=where.is_json,
    )
    if where.is_json:
        print_json(report.document())
    else:
        _print_report(report)
    if fail_on is not FailOn.NEVER and report.at_least(Level(fail_on.value)):
        raise typer.Exit(FOUND)


def _print_report(report: Report) -> None:
    facts([("broker", report.broker), *((name.replace("_", " "), _shown(name, value)) for name, value in report.facts)])
    for finding in report.findings:
        say("")
        say(f"{finding.level.upper()} {finding.code}: {finding.text}")
        say(f"  At risk: {finding.risk}")
        if finding.remedy:
            say(f"  Do: {finding.remedy}")
    if not report.findings:
        say("Nothing found that loses messages.")


def _shown(name: str, value: object) -> object:
    """Bytes in a unit that a person reads."""
    return f"{value / _MB:.1f} MB" if name.endswith("_bytes") and isinstance(value, int) else value


# ---------------------------------------------------------------------------------------------------- alerts


@spread
def alerts(
    *,
    groups: GroupsOption = None,
    metrics_urls: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="The /metrics of a running worker, for rules about rates; may be given several times.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on looking; tell what begins and what is over.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="Between two looks with --watch.")] = "30s",
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="FILE",
            help="Keep there what stands, and tell only what has begun or is over since: for timers.",
            show_default=False,
        ),
    ] = None,
    where: Where,
) -> None:
    """Evaluate the alert rules now, without Prometheus: what is wrong, and what to do about it.

    \b
    With --watch it prints a line when an alert begins and one when it is over, until Ctrl-C. With --state it does the
    same from one call to the next.
    Exit codes: 0 nothing is wrong, 1 an alert fires, 2 the command did not work.

    \b
      redrive alerts --app orders:app
      redrive alerts --app orders:app --from http://127.0.0.1:8000/metrics --json
      redrive alerts --app orders:app --state /var/lib/orders/alerts.json | mail -E -s "orders" ops@example.org
      redrive alerts --app orders:app --group every-letter --watch | while read -r line; do notify-send "$line"; done
    """
    import asyncio

    from redrive.alerting import Wanted, look_document
    from redrive.cli.target import find_app

    wanted = Wanted(groups=tuple(groups or DEFAULT_GROUPS), metrics_urls=tuple(metrics_urls or ()), state=state)
    app = carried_out(lambda: find_app(where.app, where.broker), is_json=where.is_json)
    if watch:
        every_ms = _every_ms(every)
        carried_out(
            lambda: asyncio.run(_watch(app, wanted, every_ms=every_ms, is_json=where.is_json)), is_json=where.is_json
        )
        return
    look = carried_out(lambda: asyncio.run(_look(app, wanted)), is_json=where.is_json)
    document = look_document(look)
    if where.is_json:
        print_json(document)
    elif state is None:
        _print_look(document)
    else:
        for turn in document["turns"]:
            say(_line(turn))
    if look.firing:
        raise typer.Exit(FOUND)


_WHY_UNKNOWN: Final = {
    Group.DEAD_LETTERS: "A running worker tells: --from http://HOST:PORT/metrics",
    Group.EVERY_LETTER: "The letter store does not tell.",
    Group.REDIS: "The server has no memory limit, or does not count errors. See: redrive doctor",
}


def _print_look(document: dict[str, Any]) -> None:
    firing = document["firing"]
    if firing:
        table(
            ("alert", "severity", "what"),
            [(found["alert"], found["severity"], found["summary"]) for found in firing],
            whole=("alert",),
        )
        for action in dict.fromkeys((found["alert"], found["action"]) for found in firing):
            say("")
            say(f"{action[0]}: {action[1]}")
    else:
        say("Nothing is wrong.")
    for name in document["unknown"]:
        note(f"Not judged: {name}. {_WHY_UNKNOWN[BY_NAME[name].group]}")


async def _look(app: Redrive, wanted: Wanted) -> Look:
    from redrive.alerting import Watch, look_once

    async with app:
        return await look_once(app, wanted) if wanted.state is None else await Watch(app, wanted).look()


async def _watch(app: Redrive, wanted: Wanted, *, every_ms: Millis, is_json: bool) -> None:
    """Tell each change as a line, at once. An outage is told once and changes no alert."""
    from redrive.alerting import Watch, notification_document

    is_away = False
    async with app:
        async for look in Watch(app, wanted).changes(every_ms=every_ms):
            if isinstance(look, RedriveError):
                if not is_away:
                    print_error(look.code, look.text, hint=look.hint, is_json=is_json)
                is_away = True
                continue
            is_away = False
            for notification in look.evaluation.notifications:
                found = notification_document(notification)
                say(json.dumps(found) if is_json else _line(found))
            sys.stdout.flush()


def _line(found: dict[str, Any]) -> str:
    start = f"{found['at']} {found['state'].upper()} {found['alert']} ({found['severity']}): {found['summary']}"
    return f"{start}. {found['action']}" if found["state"] == "firing" else start


def _every_ms(text: str) -> Millis:
    found = o.parse_duration(text, "--every")
    every_ms = 0 if found is None else duration_ms(found)
    o.refuse_unless(every_ms >= MIN_EVERY_MS, f"--every {text} is too often: at least 1s.")
    return every_ms


# ---------------------------------------------------------------------------------------------------- metrics


def metrics(
    *,
    groups: GroupsOption = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix",
            metavar="TEXT",
            help="What the names of metrics begin with (default: the setting metrics_prefix).",
            show_default=False,
        ),
    ] = None,
    is_json: o.JsonOption = False,
) -> None:
    """Print the Prometheus alert rules for redrive's metrics: a file for `rule_files`.

    \b
    Each rule says what happened and which command helps. The metrics themselves are served under /metrics by
    redrive up, redrive serve and redrive work --http.

    \b
      redrive metrics | tee redrive-rules.yml
      redrive metrics --group dead-letters --group every-letter
      promtool check rules redrive-rules.yml
    """
    from redrive.core.alerts import as_yaml, rule_file
    from redrive.runtime.settings import load_settings

    settings = load_settings({} if prefix is None else {"metrics_prefix": prefix})
    document = rule_file(tuple(groups or DEFAULT_GROUPS), prefix=settings.metrics_prefix)
    if is_json:
        print_json(document)
    else:
        say(as_yaml(document).rstrip("\n"))
