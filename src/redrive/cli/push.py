"""`redrive push`: a worker whose handler is somebody's HTTP endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from redrive.cli import options as o
from redrive.cli.groups import spread
from redrive.cli.processes import GraceOption, parse_address
from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.core.policy.retry import Retry
    from redrive.runtime.app import Redrive

MAX_SECRET_FILE_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How a message is sent."""

    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Limit of one request, answer included.")
    ] = "30s"
    secrets_file: Annotated[
        Path | None,
        typer.Option(
            "--secrets-file",
            metavar="FILE",
            help="Sign every request (Standard Webhooks): one whsec_… secret a line.",
            show_default=False,
        ),
    ] = None
    authorization_file: Annotated[
        Path | None,
        typer.Option(
            "--authorization-file",
            metavar="FILE",
            help="Send what this file holds as the Authorization header.",
            show_default=False,
        ),
    ] = None
    allow_private: Annotated[
        bool,
        typer.Option("--allow-private", help="Allow loopback, private and link-local addresses (your own network)."),
    ] = False
    keep_bytes: Annotated[
        int,
        typer.Option("--keep-bytes", min=0, max=4_000, metavar="N", help="How much of an answer the history keeps."),
    ] = 1_000

    def arguments(self) -> dict[str, Any]:
        """As `push_to` takes them."""
        return {
            "timeout": o.parse_duration(self.timeout, "--timeout"),
            "secrets": _lines(self.secrets_file, "--secrets-file"),
            "authorization": _sole_line(self.authorization_file, "--authorization-file"),
            "allow_private": self.allow_private,
            "keep_bytes": self.keep_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What follows from a failure."""

    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts", min=1, metavar="N", help="Attempts, the first included (default 5).", show_default=False
        ),
    ] = None
    backoff: Annotated[
        str, typer.Option("--backoff", metavar="TIME", help="Wait after the first failure; doubles from then on.")
    ] = "1s"
    max_backoff: Annotated[str, typer.Option("--max-backoff", metavar="TIME", help="The longest wait.")] = "60s"
    gives_up_on_4xx: Annotated[
        bool,
        typer.Option("--dead-letter-4xx", help="A 4xx other than 409, 425 and 429 is a dead letter at once."),
    ] = False
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate", metavar="N/TIME", help="At most so many a second, e.g. 50/s or 100/min.", show_default=False
        ),
    ] = None
    is_unbroken: Annotated[
        bool,
        typer.Option("--no-breaker", help="Go on at full speed however many deliveries fail in a row."),
    ] = False

    def arguments(self) -> dict[str, Any]:
        """As `push_to` takes them."""
        rate = o.parse_rate(self.rate)
        found: dict[str, Any] = {"retry": self._retry(), "gives_up_on_4xx": self.gives_up_on_4xx, "rate": rate}
        return {**found, "breaker": None} if self.is_unbroken else found

    def _retry(self) -> Retry:
        from redrive.core.policy.backoff import Exponential
        from redrive.core.policy.retry import DEFAULT_MAX_ATTEMPTS, Retry

        first, cap = o.parse_duration(self.backoff, "--backoff"), o.parse_duration(self.max_backoff, "--max-backoff")
        assert first is not None, "the option has a default"
        assert cap is not None, "the option has a default"
        o.refuse_unless(first <= cap, f"--backoff {self.backoff} is longer than --max-backoff {self.max_backoff}.")
        backoff = Exponential(first, cap=cap, jitter="±25%")
        return Retry(max_attempts=self.max_attempts or DEFAULT_MAX_ATTEMPTS, backoff=backoff)


@spread
def push(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Whose messages.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to post them (http or https).")],
    *,
    app: o.AppOption = None,
    broker: o.BrokerOption = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            max=10_000,
            metavar="N",
            help="Requests at once (default 32).",
            show_default=False,
        ),
    ] = None,
    request: Request,
    policy: Policy,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz there.", show_default=False
        ),
    ] = None,
    grace: GraceOption = None,
    is_json: o.JsonOption = False,
) -> None:
    """Deliver a queue to an HTTP endpoint, in any language. Its status decides what becomes of each message.

    \b
    2xx is done. 425 hands the message back at no cost. Everything else is a failed attempt: retried, honouring
    Retry-After, and dead-lettered when the attempts are used up.

    \b
      redrive push orders https://service.example/orders --broker sqlite:///orders.db
      redrive push orders http://127.0.0.1:8080/orders --allow-private --max-attempts 11 --secrets-file secrets
      redrive push orders https://service.example/orders --app shop:app    with that app's broker and topology
    """
    from redrive.cli.hosting import Hosting, host_app
    from redrive.cli.target import find_app
    from redrive.push import push_to

    pusher = _beside(find_app(app, broker, may_create=True))
    arguments = {**request.arguments(), **policy.arguments()}
    push_to(pusher, queue, url, concurrency=concurrency, **arguments)
    options = Hosting(queues=(queue,), address=parse_address(http), grace=grace, is_json=is_json)
    raise typer.Exit(host_app(pusher, options))


def _beside(found: Redrive) -> Redrive:
    """An app with the same broker, settings, topology and subscribers, and none of the consumers."""
    from redrive.runtime.app import Redrive

    made = Redrive(found.name, settings=found.settings, topology=found.topology)
    made.events = found.events
    return made


def _lines(path: Path | None, option: str) -> list[str]:
    """The lines of a file of secrets, without blank ones and comments. What is in it is never shown."""
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SECRET_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f'{option} "{path}" cannot be read ({type(error).__name__}).') from None
    lines = [line.strip() for line in text.splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    o.refuse_unless(found, f'{option} "{path}" is empty.')
    return found


def _sole_line(path: Path | None, option: str) -> str | None:
    lines = _lines(path, option)
    o.refuse_unless(len(lines) <= 1, f'{option} "{path}" has more than one line.')
    return lines[0] if lines else None
