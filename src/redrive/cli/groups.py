"""Options that belong together, as one value a command takes: which letters, where, by whom, how carefully.

A command decorated with `spread` names such values as its parameters; every field of them becomes an option of the
command line, documented once, here or in `options.py`.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer

from redrive.cli import options as o
from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.core.letters.selection import Selection
    from redrive.core.redrive import JobOptions
    from redrive.service import Service

Result = TypeVar("Result")

LETTER_PREFIX: Final = "dl_"


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its option groups as parameters of their own, as Typer reads them."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    def run(**given: Any) -> None:
        made = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**made, **given)

    parameters = [
        parameter
        for own in inspect.signature(command).parameters.values()
        for parameter in (_fields(groups[own.name]) if own.name in groups else [_own(own, hints[own.name])])
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
    return run


def _own(parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
    return parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which app, and how to answer."""

    app: o.AppOption = None
    broker: o.BrokerOption = None
    is_json: o.JsonOption = False

    def run(self, action: Callable[[Service], Awaitable[Result]], *, may_create: bool = False) -> Result:
        """Do one thing with the service of the app."""
        from redrive.cli.target import on_service

        return on_service(self.app, self.broker, action, may_create=may_create)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which letters: all that is given holds together."""

    targets: o.TargetsArgument = None
    queue: o.QueueOption = None
    state: o.StateOption = None
    reason: o.ReasonOption = None
    error_code: o.ErrorCodeOption = None
    error_type: o.ErrorTypeOption = None
    tenant: o.TenantOption = None
    key: o.KeyOption = None
    message_type: o.TypeOption = None
    group: o.GroupOption = None
    since: o.SinceOption = None
    until: o.UntilOption = None
    text: o.TextOption = None
    ids: o.IdOption = None
    line: o.FilterOption = None

    def selection(self) -> Selection:
        """Raises `ConfigurationError` for a time without an offset, two queues, or a line that means nothing."""
        from redrive.core.letters.filters import joined, parse
        from redrive.core.letters.letter import ReviewState
        from redrive.core.letters.selection import Selection

        named = [target for target in self.targets or () if target.startswith(LETTER_PREFIX)]
        queues = [target for target in self.targets or () if not target.startswith(LETTER_PREFIX)]
        queues += [] if self.queue is None else [self.queue]
        o.refuse_unless(len(set(queues)) <= 1, f"One queue at a time: {', '.join(dict.fromkeys(queues))} are several.")
        selection = Selection(
            ids=tuple(dict.fromkeys((*named, *(self.ids or ())))),
            queue=queues[0] if queues else None,
            states=frozenset(ReviewState(entry.value) for entry in self.state or ()),
            reason_code=self.reason,
            error_type=self.error_type,
            error_code=self.error_code,
            fingerprint=self.group,
            tenant=self.tenant,
            key=self.key,
            message_type=self.message_type,
            since=o.parse_time(self.since, "--since"),
            until=o.parse_time(self.until, "--until"),
            text=self.text,
        )
        if self.line is None:
            return selection
        return joined(parse(self.line, now=time.time_ns() // 1_000_000), selection)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How much, why, by whom, and how carefully letters are changed."""

    is_all: Annotated[bool, typer.Option("--all", help="No filter: every letter that this can be done to.")] = False
    limit: o.LimitOption = None
    note: o.NoteOption = ""
    actor: o.ActorOption = None
    yes: o.YesOption = False
    dry_run: o.DryRunOption = False

    @property
    def who(self) -> str:
        """The name for the audit trail."""
        return o.actor_name(self.actor)

    def refuse_everything(self, selection: Selection, verb: str) -> None:
        """A verb that changes letters must be told which: no filter at all needs `--all`."""
        from redrive.core.letters.selection import Selection

        o.refuse_unless(
            self.is_all or selection != Selection(),
            f"Which letters to {verb}? Nothing was changed.",
            f"Name a queue, ids or a filter, or say --all. Look first: redrive dlq {verb} --all --dry-run",
        )


class EvenIf(StrEnum):
    """Refusals that a person may waive."""

    DEDUP_EXPIRED = "dedup-expired"
    OUT_OF_ORDER = "out-of-order"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How letters are sent back."""

    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="At most so many: 50/s, 100/min.", show_default=False)
    ] = None
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="QUEUE", help="Send there instead of where it came from.", show_default=False),
    ] = None
    keep_attempts: Annotated[
        bool, typer.Option("--keep-attempts", help="Continue the old count instead of starting at 1.")
    ] = False
    keep_ttl: Annotated[
        bool, typer.Option("--keep-ttl", help="Let the copy expire after the lifetime the message had.")
    ] = False
    canary: Annotated[
        int | None,
        typer.Option(
            "--canary",
            min=1,
            max=10_000,
            metavar="K",
            help="So many first, of every group and tenant; if they fail again, the job stops by itself.",
            show_default=False,
        ),
    ] = None
    canary_watch: Annotated[
        str, typer.Option("--canary-watch", metavar="TIME", help="How long to wait for what becomes of them.")
    ] = "60s"
    edit: Annotated[
        Path | None,
        typer.Option(
            "--edit",
            metavar="FILE",
            help="A JSON Patch (RFC 6902) for the body of each copy; --dry-run shows what it changes.",
            show_default=False,
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Also what was redriven three times already, and what is replayed.")
    ] = False
    even_if: Annotated[
        list[EvenIf] | None,
        typer.Option(
            "--even-if",
            help="Also what is refused for this: its consumer has forgotten the key; an earlier letter of it is open.",
            show_default=False,
        ),
    ] = None
    request_key: Annotated[
        str | None,
        typer.Option(
            "--request-key",
            metavar="KEY",
            help="Repeating the command with the same key never makes a second job.",
            show_default=False,
        ),
    ] = None
    detach: Annotated[
        bool, typer.Option("--detach", help="Store the job, leave it to a running worker, and return at once.")
    ] = False

    def options(self, limit: int | None) -> JobOptions:
        """The options of the job."""
        from redrive.core.redrive import JobOptions
        from redrive.core.refusals import WAIVABLE

        return JobOptions(
            limit=limit,
            rate_per_s=o.parse_rate(self.rate),
            keep_attempts=self.keep_attempts,
            keep_ttl=self.keep_ttl,
            target_queue=self.to,
            force=self.force,
            even_if=tuple(each for each in WAIVABLE if each in (self.even_if or ())),
            canary=self.canary,
            edit=None if self.edit is None else _text_of(self.edit),
            canary_watch_ms=(o.parse_duration(self.canary_watch, "--canary-watch") or timedelta())
            // timedelta(milliseconds=1),
        )


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f'The patch "{file}" cannot be read: {error}. Nothing was sent.') from None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """What goes with a published message."""

    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Not before so long: 5s, 10m.", show_default=False)
    ] = None
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Idempotency key: handled once per queue.", show_default=False),
    ] = None
    message_id: Annotated[
        str | None, typer.Option("--message-id", metavar="ID", help="Its id (else one is made).", show_default=False)
    ] = None
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Whose it is.", show_default=False)] = (
        None
    )
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", help="1 is the most urgent.", show_default=False)
    ] = None
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header; may be given several times.", show_default=False
        ),
    ] = None
    message_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Message type, e.g. order.created.", show_default=False)
    ] = None
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="Dead as EXPIRED when older.", show_default=False)
    ] = None
    content_type: Annotated[
        str | None,
        typer.Option("--content-type", metavar="TYPE", help="Else JSON or text, as it is.", show_default=False),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Only if the queue does not know the key yet.")] = False
    exchange: Annotated[
        str, typer.Option("--exchange", metavar="NAME", help="Send it there; QUEUE is the routing key then.")
    ] = ""

    def arguments(self) -> dict[str, Any]:
        """As `Redrive.publish` takes them, the content type aside. Raises `ConfigurationError`."""
        o.refuse_unless(not self.once or self.key is not None, "--once needs --key: it asks whether the key is known.")
        return {
            "delay": o.parse_duration(self.delay, "--delay"),
            "idempotency_key": self.key,
            "message_id": self.message_id,
            "tenant": self.tenant,
            "priority": self.priority,
            "headers": self._headers(),
            "type": self.message_type,
            "ttl": o.parse_duration(self.ttl, "--ttl"),
            "once": self.once,
            "exchange": self.exchange,
        }

    def _headers(self) -> dict[str, Any] | None:
        headers: dict[str, Any] = {}
        for pair in self.headers or ():
            name, equals, value = pair.partition("=")
            o.refuse_unless(equals and name, f'--header "{pair}" is not NAME=VALUE.')
            headers[name] = value
        return headers or None
