"""Writes docs/reference from the code: `make docs`. A test holds the pages to what this would write now.

Every table in the reference is one that the program itself uses: the events it emits, the errors it raises, the
settings it reads, the metrics it shows, the states it moves through. Nothing here is written twice.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import typer

from docs import answers, api
from redrive import errors
from redrive.cli.root import SECTIONS
from redrive.cli.root import app as command_line
from redrive.core import delivery, idempotency, redrive
from redrive.core.alerts import ALERT_TRANSITIONS, FIGURES, RULES, Rule
from redrive.core.letters import review
from redrive.core.policy import flow
from redrive.core.policy.catalogue import errors as error_catalogue
from redrive.core.policy.catalogue import grpc, mail, ses, ses_events, smtp, system
from redrive.core.policy.catalogue.http import entry_of_status
from redrive.core.policy.failure import Entry
from redrive.core.topology.verify import CATALOGUE
from redrive.runtime.events import EVENTS
from redrive.runtime.metrics import METRICS, PREFIX
from redrive.runtime.settings import ENVIRONMENT_PREFIX, Settings, setting_names

FOLDER: Final = Path(__file__).resolve().parent / "reference"
NOTE: Final = "<!-- Written by `make docs` from the code. Do not edit. -->"
MS: Final = "_ms"


_EVENTS_INTRO: Final = """\
Everything that happens is one event with fields. Logs and metrics subscribe to them, and so can you:
`app.events.subscribe(function)`. Fields are values, never formatted into text. What happens for every message on the
happy path is one event a batch.
"""

_LOSSES_INTRO: Final = """\
What `redrive topology verify` finds in a topology of RabbitMQ, by code. Each finding tells the story with the names and
values of your topology and the path of the message. `error`: a message is lost, loops or is stuck on a way it will
take. `warning`: it is under a condition, or comes early, late or twice. `info`: it depends on what definitions do not
say, mostly on how publishers and consumers behave. See
[Check a topology](../how-to/check-a-topology.md) for how to use it.
"""

_ERRORS_INTRO: Final = """\
Each error says what happened, what became of the message, and what to do. `code` is stable: it is in the logs, in
`--json` output, and the last part of the `type` of an HTTP problem document. Catch `RedriveError` for all of them. The
signals `RetryLater`, `DeadLetter` and `Requeue` are not errors.
"""

_SETTINGS_INTRO: Final = """\
What may differ between two installations of one app. A consumer's own policy is in its decorator. Constructor
arguments win over environment variables, and those over `redrive.toml` in the working directory (`REDRIVE_CONFIG`
names another file). An unknown name is an error.
"""

_METRICS_INTRO: Final = """\
Served in Prometheus' text format under `/metrics` by `redrive up`, `redrive serve` and `redrive work --http`. Labels
that strangers choose (tenants, codes) are bounded: beyond the largest, all are `other`.
"""

_ALERTS_INTRO: Final = """\
One table for Prometheus (`redrive metrics` prints its rule file, with `Redrive` before each name) and without it
(`redrive alerts`). The groups `dead-letters` and `redis` are those one gets without asking. See
[Be told](../how-to/alerts.md).
"""

_REASONS_INTRO: Final = """\
A dead letter's reason has a code for machines and a text for a person. A consumer can give codes of its own with
`codes={…}`, and rules of its own with `rules=[…]`: they are asked first.
"""

_COMMANDS_INTRO: Final = """\
Every command has `--help` with examples. Lists and results come as one JSON document with `--json`. Exit codes:
0 all of it worked, 1 something failed or was refused, 2 the command or the configuration is wrong, 70 something nobody
foresaw (a bug, whose traceback `REDRIVE_LOG_LEVEL=debug` shows, or an output on a full disk), 130 interrupted.
"""

_TOML: Final = """\
```toml
# redrive.toml
broker = "sqlite:////var/lib/orders/orders.db"
grace = "20s"
processes = 2
```
"""


def pages() -> dict[str, str]:
    """Every generated page: file name to text."""
    return {name: f"{NOTE}\n\n{write()}" for name, write in _PAGES.items()}


def main() -> int:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, "utf-8")
    print(f"{len(_PAGES)} pages written to {FOLDER}")
    return 0


# ---------------------------------------------------------------------------------------------------- pages


def _events() -> str:
    parts = [
        "# Events",
        _EVENTS_INTRO,
    ]
    for name, event in EVENTS.items():
        rows = [(f"`{field}`", meaning) for field, meaning in event.fields.items()]
        parts += [f"## `{name}`", f"{event.text}. Level {event.level}.", _table(("field", "meaning"), rows)]
    return _joined(parts)


def _errors() -> str:
    parts = [
        "# Errors",
        _ERRORS_INTRO,
    ]
    for kind in _error_kinds():
        parts += [f"## `{kind.code}`", f"`{kind.__name__}`", _paragraph(kind)]
    return _joined(parts)


def _error_kinds() -> list[type[errors.RedriveError]]:
    found = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.RedriveError)]
    return sorted(found, key=lambda kind: (kind is not errors.RedriveError, kind.code))


def _settings() -> str:
    fields = {field.name.removesuffix(MS): field for field in dataclasses.fields(Settings)}
    rows = [
        (f"`{name}`", f"`{ENVIRONMENT_PREFIX}{name.upper()}`", _default(fields[name]), _kind(fields[name]))
        for name in setting_names()
    ]
    return _joined(
        [
            "# Settings",
            _SETTINGS_INTRO,
            _table(("in a file or argument", "environment", "default", "kind"), rows),
            _paragraph(Settings),
            _TOML,
        ]
    )


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if field.name.endswith(MS) and isinstance(value, int):
        return f"`{value}ms`" if value % 1_000 else f"`{value // 1_000}s`"
    return "not set" if value is None or value == () else f"`{value}`"


def _kind(field: dataclasses.Field[Any]) -> str:
    if field.name.endswith(MS):
        return "duration"
    kinds = {"str": "text", "int": "whole number", "int | None": "whole number"}
    return {**kinds, **_TABLES}.get(str(field.type), str(field.type))


_TABLES: Final = {
    "tuple[MailRule, ...]": "tables, or a file of them",
    "JwtRules | None": "a table, or a file that holds it",
    "tuple[RedactRule, ...]": "tables, or a file of them",
}


def _metrics() -> str:
    rows = [
        (
            f"`{PREFIX}{name}{'_total' if metric.kind == 'counter' else ''}`",
            metric.kind,
            _labels(metric.labels),
            metric.text,
        )
        for name, metric in METRICS.items()
    ]
    return _joined(
        [
            "# Metrics",
            _METRICS_INTRO,
            _table(("name", "kind", "labels", "meaning"), rows),
        ]
    )


_ENDING: Final = {"counter": "_total"}


def _labels(labels: Sequence[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


def _alerts() -> str:
    rows = [
        (f"`{rule.name}`", rule.group, rule.severity, _conditions(rule), _filled(rule.summary), _filled(rule.action))
        for rule in RULES
    ]
    figures = [(f"`{name}`", figure.text, f"`{figure.expression}`") for name, figure in FIGURES.items()]
    return _joined(
        [
            "# Alerts",
            _ALERTS_INTRO,
            _table(("name", "group", "severity", "when", "what it says", "what to do"), rows),
            "## Figures",
            "What the rules compare, and what each is in Prometheus (`$` stands for the prefix of the metrics).",
            _table(("figure", "meaning", "expression"), figures),
        ]
    )


def _filled(text: str) -> str:
    return text.replace("{value}", "N").replace("{label}", "ACME").replace("{word}", "ACME")


def _conditions(rule: Rule) -> str:
    return " and ".join(f"`{each.figure} {each.compared} {each.limit:g}`" for each in rule.when)


def _states() -> str:
    tables: tuple[tuple[str, str, Mapping[StrEnum, Mapping[Any, StrEnum]]], ...] = (
        ("One delivery", "A second settlement is refused, so the first one is the truth.", delivery.TRANSITIONS),
        ("An idempotency key", "One record for each (queue, key).", idempotency.TRANSITIONS),
        ("A letter", "Where a person stands with a dead letter.", review.TRANSITIONS),
        ("A redrive job", "Stored before it starts; anyone can resume it.", redrive.JOB_TRANSITIONS),
        ("A breaker", "Stops taking messages while every one fails.", flow.BREAKER_TRANSITIONS),
        (
            "An alert",
            "Each turn into firing or resolved is told once; what cannot be read changes nothing.",
            ALERT_TRANSITIONS,
        ),
    )
    parts = ["# States", "Each machine is one table in the code. What is not in it is refused."]
    for title, text, transitions in tables:
        parts += [f"## {title}", text, _diagram(transitions)]
    return _joined(parts)


def _diagram(transitions: Mapping[StrEnum, Mapping[Any, StrEnum]]) -> str:
    arrows = [f"    {state} --> {to}: {event}" for state, row in transitions.items() for event, to in row.items()]
    rows = [(f"`{state}`", f"`{event}`", f"`{to}`") for state, row in transitions.items() for event, to in row.items()]
    picture = "\n".join(["```mermaid", "stateDiagram-v2", *arrows, "```"])
    return f"{picture}\n\n{_table(('state', 'event', 'next state'), rows)}"


_REASONS: Final = (
    ("VALIDATION_FAILED", "The payload is not of the type the handler asks for, or the handler says so."),
    ("MALFORMED_PAYLOAD", "The bytes cannot be decoded at all."),
    ("PAYLOAD_TOO_LARGE", "The body, or what it unpacks to, is over its limit."),
    ("WORKER_LOST", "The last of the allowed starts never ended: the worker died or lost its lease."),
    ("EXPIRED", "The message's lifetime was over before an attempt could start."),
    ("QUARANTINED", "A person set its tenant or key aside; it was not handled, and a redrive handles it."),
    ("REJECTED_BY_HANDLER", "The handler raised `DeadLetter` without a code of its own."),
    ("…_EXHAUSTED", "A transient failure used up the attempts: the failure's code with this ending."),
    ("DOWNSTREAM_TIMEOUT_EXHAUSTED", "The same for timeouts."),
    ("HTTP_4xx, HTTP_5xx", "The status that decided, with its number."),
)


def _reasons() -> str:
    parts = [
        "# Reason codes, and what counts as transient",
        _REASONS_INTRO,
        _table(("reason code", "meaning"), [(f"`{code}`", text) for code, text in _REASONS]),
        "What is in none of the tables below is transient: one attempt more costs little, a lost message much.",
    ]
    for title, rows in _catalogues():
        parts += [f"## {title}", _table(("failure", "kind", "code", "laid down in"), rows)]
    return _joined(parts)


def _catalogues() -> Iterable[tuple[str, list[tuple[str, ...]]]]:
    yield "Errors by class", _entries(error_catalogue.BY_NAME)
    yield "Errors by bare name, in any package", _entries(error_catalogue.BY_BARE_NAME)
    yield "HTTP status", _entries({str(status): entry_of_status(status) for status in _STATUSES})
    yield "gRPC status", _entries(grpc.BY_STATUS_NAME)
    yield "AWS and SES error codes", _entries(ses.BY_CODE)
    yield "Operating system errors", _entries({name: system.BY_ERRNO_NAME[name] for name in _ERRNOS})


_MAIL_INTRO: Final = """\
What answers of mail servers and of Amazon SES mean: a verdict (transient, permanent, or an outcome nobody knows), what
it is about, whom it concerns, and how long to stay away at least. Rows are asked from top to bottom, and the first that
fits decides; your own rules stand over them (see [Mail](../how-to/mail.md)). Where a row has no verdict, the first
digit of the enhanced code gives it, else that of the basic code. A time that a text tells ("in 300 seconds") wins over
a row's. What concerns the lane costs no message an attempt.
"""

_MAIL_TABLES: Final = (
    ("SMTP: texts about limits, asked first", smtp.LIMITS),
    ("SMTP: enhanced codes of addresses", smtp.ADDRESSES),
    ("SMTP: texts about mailboxes, blocks and addresses", (*smtp.FULL, *smtp.BLOCKS, *smtp.ADDRESS_TEXTS)),
    ("SMTP: basic and enhanced code together", smtp.PAIRS),
    ("SMTP: enhanced codes", smtp.ENHANCED),
    ("SMTP: a text that says later", smtp.LATER),
    ("SMTP: basic codes (those of log-in before the enhanced ones)", smtp.BASIC),
    ("SMTP: what is left", (*smtp.CLASSES, smtp.BROKEN, smtp.LOST_AFTER_DATA)),
    ("Amazon SES: codes with several meanings", ses.TEXTS),
    ("Amazon SES: error codes", ses.ROWS),
    ("Amazon SES: codes of all AWS services, in the answer to a call that sends", ses.SHARED),
)


def _mail() -> str:
    causes = [(f"`{cause}`", f"`{scope}`", text) for cause, (scope, text) in mail.CAUSES.items()]
    parts = ["# What mail servers answer", _MAIL_INTRO, "## Causes", _table(("cause", "concerns", "meaning"), causes)]
    head = ("answer", "fits", "verdict", "cause", "concerns", "stay away", "laid down in")
    for title, rows in _MAIL_TABLES:
        parts += [f"## {title}", _table(head, [_mail_row(row) for row in rows])]
    bounces = [(f"`{row.type}/{row.subtype}`", row.kind, f"`{row.cause}`", "yes" if row.is_fact else "",
                row.source) for row in ses_events.BOUNCES]  # fmt: skip
    parts += ["## Amazon SES: bounces", "`is a fact`: the receiving server's own words do not change it."]
    parts += [_table(("type and subtype", "verdict", "cause", "is a fact", "laid down in"), bounces)]
    return _joined(parts)


def _mail_row(row: mail.MailRow) -> tuple[str, ...]:
    fits = [f"`{code}`" for code in sorted(map(str, row.codes))]
    fits += [f"code `{row.enhanced.pattern}`"] if row.enhanced is not None else []
    fits += [f"text `{row.text.pattern}`"] if row.text is not None else []
    fits += [f"{row.digit}yz"] if row.digit is not None else []
    wait = "" if row.delay_ms is None else f"{row.delay_ms // 1_000} s"
    return (row.what, ", ".join(fits), row.verdict or "", f"`{row.cause}`", f"`{row.about}`", wait, row.source)


_STATUSES: Final = (200, 400, 401, 403, 404, 408, 409, 410, 413, 415, 422, 423, 425, 429, 500, 501, 502, 503, 504, 505)
_ERRNOS: Final = ("ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EPIPE", "EHOSTUNREACH", "ENETUNREACH", "ENOSPC", "EMFILE")


def _entries(catalogue: Mapping[str, Entry | None]) -> list[tuple[str, ...]]:
    return [
        (f"`{name}`", "success", "", "")
        if entry is None
        else (f"`{name}`", entry.kind, f"`{entry.code}`", entry.source)
        for name, entry in catalogue.items()
    ]


def _losses() -> str:
    parts = ["# Ways to lose a message", _LOSSES_INTRO]
    for code, kind in CATALOGUE.items():
        parts += [
            f"## `{code}`\n\n**{kind.title}.** {kind.story}",
            f"*What to do.* {kind.remedy}",
            f"*Where the rule comes from.* {kind.source}.",
        ]
    return _joined(parts)


def _commands() -> str:
    root: Any = typer.main.get_command(command_line)
    parts = [
        "# Command line",
        _COMMANDS_INTRO,
    ]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            parts += _command(root.commands[name], f"redrive {name}")
    return _joined(parts)


def _command(command: Any, path: str) -> list[str]:
    if hasattr(command, "commands"):
        intro = [f"### `{path}`", _help(command.help)]
        return [
            *intro,
            *(part for name in command.commands for part in _command(command.commands[name], f"{path} {name}")),
        ]
    rows = [row for parameter in command.params for row in _parameter(parameter)]
    return [f"### `{path}`", _help(command.help), _table(("argument or option", "meaning"), rows)]


def _help(text: str | None) -> str:
    """Paragraphs as they are; what stands after the form feed mark is an example and keeps its lines."""
    blocks = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(_block(block) for block in blocks)


def _block(block: str) -> str:
    if not block.startswith("\b"):
        return block
    lines = [line.removeprefix("  ") for line in block.splitlines()[1:]]
    return "\n".join(["```text", *lines, "```"])


def _parameter(parameter: Any) -> list[tuple[str, str]]:
    if parameter.name in ("help", "install_completion", "show_completion"):
        return []
    text = (getattr(parameter, "help", None) or "").replace("\n", " ")
    if parameter.param_type_name == "argument":
        return [(f"`{parameter.metavar or parameter.name.upper()}`", text)]
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    shown = "" if default in (None, False, "", ()) or callable(default) else f" Default {default}."
    return [(names, text + shown)]


# ---------------------------------------------------------------------------------------------------- writing


def _paragraph(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.rstrip() for part in parts if part.strip()) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


_PAGES: Final[dict[str, Callable[[], str]]] = {
    "alerts.md": _alerts,
    "api.md": api.page,
    "commands.md": _commands,
    "errors.md": _errors,
    "events.md": _events,
    "json.md": answers.page,
    "losses.md": _losses,
    "mail.md": _mail,
    "metrics.md": _metrics,
    "reasons.md": _reasons,
    "settings.md": _settings,
    "states.md": _states,
}


if __name__ == "__main__":
    sys.exit(main())
