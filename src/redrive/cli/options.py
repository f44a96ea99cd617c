"""Options that several commands share, each written once."""

from __future__ import annotations

import getpass
import re
import time
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

import typer

from redrive.core.policy import flow
from redrive.core.units import UnixMs, duration_ms, parse_instant
from redrive.errors import ConfigurationError

AppOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="The app to work on, e.g. orders:app.", show_default=False),
]
BrokerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="URL",
        help="Its broker instead, e.g. sqlite:///orders.db (else REDRIVE_BROKER, else redrive.toml).",
        show_default=False,
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
YesOption: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Say exactly what would happen; change nothing.")
]
NoteOption: TypeAlias = Annotated[str, typer.Option("--note", metavar="TEXT", help="Why; kept in the audit trail.")]
ActorOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--actor", metavar="NAME", help="Who, for the audit trail (default: your login).", show_default=False),
]
LimitOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many, oldest first.", show_default=False),
]
TargetsArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUEUE|LETTER",
        help="A queue (the consumer's or the dead-letter queue), or ids of letters (dl_…).",
        show_default=False,
    ),
]


class State(StrEnum):
    """Review states, as a choice that the shell completes."""

    PENDING = "pending"
    REVIEWED = "reviewed"
    REPLAYED = "replayed"
    CLOSED = "closed"


QueueOption: TypeAlias = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="Of this queue.", show_default=False)
]
StateOption: TypeAlias = Annotated[
    list[State] | None,
    typer.Option("--state", help="In this review state; may be given several times.", show_default=False),
]
ReasonOption: TypeAlias = Annotated[
    str | None, typer.Option("--reason", metavar="CODE", help="With this reason code.", show_default=False)
]
ErrorCodeOption: TypeAlias = Annotated[
    str | None, typer.Option("--error-code", metavar="CODE", help="Whose last error has this code.", show_default=False)
]
ErrorTypeOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--error-type", metavar="NAME", help="Whose last error is of this class.", show_default=False),
]
TenantOption: TypeAlias = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Of this tenant.", show_default=False)
]
KeyOption: TypeAlias = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="With this idempotency key.", show_default=False)
]
TypeOption: TypeAlias = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Of this message type.", show_default=False)
]
GroupOption: TypeAlias = Annotated[
    str | None, typer.Option("--group", metavar="ID", help="Of this group (see: dlq stats).", show_default=False)
]
SinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Dead since then: 2h (ago), or 2026-01-31T12:00:00+01:00 (with an offset).",
        show_default=False,
    ),
]
UntilOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Dead before then; written as for --since.", show_default=False),
]
TextOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--text", metavar="TEXT", help="With this in reason, message id or key.", show_default=False),
]
FilterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="LINE",
        help="All of it in one line: 'queue:orders error:TIMEOUT since:2h \"card declined\"'.",
        show_default=False,
    ),
]
IdOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="LETTER", help="This letter; may be given several times.", show_default=False),
]

_RELATIVE: Final = re.compile(r"\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)", re.ASCII)


def parse_time(text: str | None, name: str, *, now: UnixMs | None = None) -> UnixMs | None:
    """A time filter: a duration before now, or an RFC 3339 instant, which must carry an offset.

    Raises `ConfigurationError`; a time without an offset is refused because it means another instant on every host.
    """
    if text is None:
        return None
    if _RELATIVE.fullmatch(text.strip()):
        base = time.time_ns() // 1_000_000 if now is None else now
        return base - duration_ms(text, field=name)
    try:
        return parse_instant(text, field=name)
    except ConfigurationError as error:
        hint = "Write 2h for two hours ago, or an instant such as 2026-01-31T12:00:00+01:00 or 2026-01-31T11:00:00Z."
        raise ConfigurationError(error.text, hint=hint) from None


def parse_duration(text: str | None, name: str) -> timedelta | None:
    """A duration as everywhere, or just a number of seconds. Raises `ConfigurationError` naming the option."""
    if text is None:
        return None
    try:
        return timedelta(milliseconds=duration_ms(_number_or_text(text), field=name))
    except ConfigurationError as error:
        hint = "Write a number with its unit: 1500ms, 30s, 5m, 2h, 7d; without one it is seconds."
        raise ConfigurationError(error.text, hint=hint) from None


def parse_rate(text: str | None) -> float | None:
    """A rate as so many per second: `50`, `50/s`, `100/min`, `1000/h`. Raises `ConfigurationError`."""
    return None if text is None else flow.parse_rate(_number_or_text(text), field="--rate").per_s


def _number_or_text(text: str) -> float | str:
    """What is written without a unit, as the number it is."""
    number = text.strip()
    return float(number) if number.isascii() and number.replace(".", "", 1).isdigit() else number


def actor_name(actor: str | None) -> str:
    """Who acts: as given, else the login name."""
    if actor is not None and actor.strip():
        return actor
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def refuse_unless(condition: Any, text: str, hint: str = "") -> None:
    """Raise `ConfigurationError` where options do not fit together."""
    if not condition:
        raise ConfigurationError(text, hint=hint)
