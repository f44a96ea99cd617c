"""Consumer: what one `@app.consumer` says, checked once, as a frozen value."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from redrive.core.policy.catalogue.mail import NO_RULES, MailRows, MailRule, merged
from redrive.core.policy.classify import Rule
from redrive.core.policy.fair import Fair, make_fair
from redrive.core.policy.flow import DEFAULT_BREAKER, BreakerPolicy, Rate, RateSpec, parse_rate
from redrive.core.policy.retry import Retry
from redrive.core.units import Duration, Millis, duration_ms
from redrive.errors import ConfigurationError
from redrive.runtime.dead_letter_queues import LetterDocument
from redrive.runtime.decode import Decode, make_decoder
from redrive.runtime.settings import Settings

LEASE_MIN_MS: Final[Millis] = 300
"""A lease is renewed every third of it; below this a busy host cannot keep up."""

MAX_CONCURRENCY: Final = 10_000
MAX_NAME_BYTES: Final = 255
"""As AMQP has it, so that an app can change its broker."""

ASYNC_CONCURRENCY: Final = 100
THREAD_CONCURRENCY: Final = 16


class Kind(StrEnum):
    """Where a handler runs."""

    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


class Default:
    """The type of `DEFAULT`."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = Default()
"""An argument left out, where None means something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One queue, its handler, and its policy."""

    queue: str
    handler: Callable[..., Any]
    kind: Kind
    payload_type: Any
    decode: Decode
    wants_delivery: bool
    retry: Retry
    has_own_retry: bool
    concurrency: int
    timeout_ms: Millis | None
    lease_ms: Millis
    rate: Rate | None
    fair: Fair | None
    breaker: BreakerPolicy | None
    idempotency: bool
    idempotency_ttl_ms: Millis
    dead_letter_queue: str
    letter_ttl_ms: Millis | None
    message_ttl_ms: Millis | None
    http_status: bool
    rules: tuple[Rule, ...] = ()
    attempt_field: str | None = None
    codes: Mapping[str, str] = field(default_factory=dict)
    mail_rules: MailRows = NO_RULES
    max_letters: int | None = None
    letter_document: LetterDocument | None = None

    @property
    def max_attempts(self) -> int:
        """Runs of the handler, the first included."""
        return self.retry.max_attempts


def make_consumer(
    queue: str,
    handler: Callable[..., Any],
    settings: Settings,
    *,
    retry: Retry | None,
    concurrency: int | None,
    process: bool,
    timeout: Duration | None,
    lease: Duration,
    rate: RateSpec | None,
    fair_by: Fair | str | None,
    breaker: BreakerPolicy | Default | None,
    idempotency: bool,
    idempotency_ttl: Duration,
    dead_letter_queue: str | None,
    letter_ttl: Duration | None,
    message_ttl: Duration | None,
    http_status: bool,
    rules: Sequence[Rule | MailRule],
    attempt_field: str | None,
    codes: Mapping[str, str] | None,
    max_letters: int | None,
    letter_document: LetterDocument | None,
) -> Consumer:
    """Check every argument of `Redrive.consumer` and their relations. Raises `ConfigurationError` naming the field."""
    where = f'consumer "{queue}"'
    _check_name(queue, where)
    dead = f"{queue}.dead" if dead_letter_queue is None else dead_letter_queue
    _check_name(dead, f"{where}: dead_letter_queue")
    if dead == queue:
        raise ConfigurationError(f"{where}: dead_letter_queue is the queue itself; a dead letter would come back.")
    kind = _kind(handler, where, process=process)
    payload_type, wants_delivery = _parameters(handler, where)
    return Consumer(
        queue=queue,
        handler=handler,
        kind=kind,
        payload_type=payload_type,
        decode=make_decoder(payload_type, settings, where=where),
        wants_delivery=wants_delivery,
        retry=_retry(retry, where),
        has_own_retry=retry is not None,
        concurrency=_concurrency(concurrency, settings, kind, where=where),
        timeout_ms=_positive(timeout, f"{where}: timeout"),
        lease_ms=_lease(lease, where),
        rate=None if rate is None else parse_rate(rate, field=f"{where}: rate"),
        fair=make_fair(fair_by, where),
        breaker=_breaker(breaker, where),
        idempotency=idempotency,
        idempotency_ttl_ms=_required(idempotency_ttl, f"{where}: idempotency_ttl"),
        dead_letter_queue=dead,
        letter_ttl_ms=_positive(letter_ttl, f"{where}: letter_ttl"),
        message_ttl_ms=_positive(message_ttl, f"{where}: message_ttl"),
        http_status=http_status,
        rules=_rules(rules, where),
        attempt_field=attempt_field,
        codes=dict(codes or {}),
        max_letters=_max_letters(max_letters, where),
        letter_document=letter_document,
        mail_rules=merged([*(rule for rule in rules if isinstance(rule, MailRule)), *settings.mail_rules]),
    )


def _check_name(name: str, where: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name.strip() or size > MAX_NAME_BYTES:
        raise ConfigurationError(f"{where}: a queue name has 1 to {MAX_NAME_BYTES} bytes, this one has {size}.")


def _retry(retry: Retry | None, where: str) -> Retry:
    if retry is None:
        return Retry()
    if not isinstance(retry, Retry):
        raise ConfigurationError(f"{where}: retry is {retry!r}.", hint="Write retry=Retry(max_attempts=5, …).")
    return retry


def _breaker(breaker: BreakerPolicy | Default | None, where: str) -> BreakerPolicy | None:
    if isinstance(breaker, Default):
        return DEFAULT_BREAKER
    if breaker is not None and not isinstance(breaker, BreakerPolicy):
        raise ConfigurationError(f"{where}: breaker is {breaker!r}.", hint="Write a BreakerPolicy(…), or None for off.")
    return breaker


def _max_letters(given: int | None, where: str) -> int | None:
    value: Any = given
    if given is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigurationError(
            f"{where}: max_letters is {given!r}: it must be a whole number, 1 or more.",
            hint="None is without a maximum.",
        )
    return given


def _rules(rules: Sequence[Rule | MailRule], where: str) -> tuple[Rule, ...]:
    for rule in rules:
        if not isinstance(rule, Rule | MailRule):
            raise ConfigurationError(f"{where}: {rule!r} is no rule.", hint='Write Rule(KeyError, "permanent").')
    return tuple(rule for rule in rules if isinstance(rule, Rule))


def _kind(handler: Callable[..., Any], where: str, *, process: bool) -> Kind:
    called = handler if inspect.isroutine(handler) else type(handler).__call__
    is_async = inspect.iscoroutinefunction(called)
    if not process:
        return Kind.ASYNC if is_async else Kind.THREAD
    if is_async:
        raise ConfigurationError(f"{where}: process=True needs a plain function, the handler is async.")
    if "<locals>" in getattr(handler, "__qualname__", "<locals>"):
        raise ConfigurationError(
            f"{where}: process=True needs a handler that a new process can import.",
            hint="Define it at the top of a module.",
        )
    return Kind.PROCESS


def _parameters(handler: Callable[..., Any], where: str) -> tuple[Any, bool]:
    """The payload's annotation, and whether the handler takes a `Delivery` too."""
    try:
        named = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: the handler's parameters cannot be read: {error}.") from error
    parameters = [p for p in named if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty]
    if not parameters or len(required) > 2:  # noqa: PLR2004 - payload and delivery
        raise ConfigurationError(f"{where}: a handler takes the payload and, if it wants, the Delivery.")
    hints = _hints(handler, where)
    return hints.get(parameters[0].name, Any), len(required) == 2 or _is_delivery(parameters, hints)  # noqa: PLR2004


def _is_delivery(parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> bool:
    from redrive.runtime.delivery import Delivery  # noqa: PLC0415 - delivery knows consumer

    return len(parameters) > 1 and hints.get(parameters[1].name) is Delivery


def _hints(handler: Callable[..., Any], where: str) -> dict[str, Any]:
    target = handler if inspect.isroutine(handler) else type(handler).__call__
    try:
        return typing.get_type_hints(target)
    except NameError as error:
        raise ConfigurationError(
            f"{where}: the handler's annotation cannot be resolved: {error}.",
            hint="Define the payload type before the handler, at the top of the module.",
        ) from error


def _concurrency(given: int | None, settings: Settings, kind: Kind, *, where: str) -> int:
    if given is None:
        given = settings.concurrency
    if given is None:
        by_kind = {Kind.ASYNC: ASYNC_CONCURRENCY, Kind.THREAD: THREAD_CONCURRENCY, Kind.PROCESS: os.cpu_count() or 1}
        return by_kind[kind]
    if isinstance(given, bool) or not 1 <= given <= MAX_CONCURRENCY:
        raise ConfigurationError(f"{where}: concurrency is {given!r}: it must be between 1 and {MAX_CONCURRENCY}.")
    return given


def _lease(lease: Duration, where: str) -> Millis:
    lease_ms = _required(lease, f"{where}: lease")
    if lease_ms < LEASE_MIN_MS:
        raise ConfigurationError(
            f"{where}: lease is {lease_ms} ms: it is renewed every third of it and must be at least {LEASE_MIN_MS} ms."
        )
    return lease_ms


def _positive(value: Duration | None, name: str) -> Millis | None:
    return None if value is None else _required(value, name)


def _required(value: Duration, name: str) -> Millis:
    value_ms = duration_ms(value, field=name)
    if value_ms == 0:
        raise ConfigurationError(f"{name} is {value!r}: it must be longer than nothing.")
    return value_ms
