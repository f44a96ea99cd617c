"""An exception, status or reply code to Failure(kind, code, text).

For each error, outermost first: the consumer's own rules; then what the error carries (an HTTP status, a mail
server's reply, an AWS or gRPC code, an errno); then its class in the catalogue, most specific first. An error that
says nothing is asked for its cause (`raise … from`). The error it was raised while handling (`__context__`) may only
make it transient: a bug in a clean-up that follows a validation error is not itself a validation error. What stands
nowhere is transient, under its class's name: retrying a failure nobody knows costs a little, giving up too early
costs the message.

An exception group is as permanent as its worst member. Nothing here raises, whatever the error's own attributes,
`__str__` or `__cause__` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from redrive.core.policy.catalogue import errors, http, system
from redrive.core.policy.catalogue.grpc import BY_STATUS_NAME
from redrive.core.policy.catalogue.mail import NO_RULES, MailRows
from redrive.core.policy.classify_mail import failure_of_api_error, failure_of_mail_error
from redrive.core.policy.failure import Entry, Failed, Failure, FailureKind, Scope
from redrive.core.signals import DeadLetter, Requeue, RetryLater, Signal
from redrive.core.text import code_of, cut
from redrive.core.units import Duration, Millis, UnixMs, duration_ms
from redrive.errors import ConfigurationError

__all__ = [
    "Failure", "FailureKind", "Match", "Rule", "classify", "classify_status", "error_text", "error_type",
    "failure_of_unknown", "find_signal",
]  # fmt: skip

MAX_CHAIN: Final = 20
"""How many causes deep a failure is looked for."""
MAX_MEMBERS: Final = 100
"""How many members of an exception group are looked at."""

Match: TypeAlias = "type[BaseException] | tuple[type[BaseException], ...] | str | Callable[[BaseException], bool]"
"""Exception classes, a class's name ("httpx.ReadTimeout"), or a function of the error."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A consumer's own rule, asked before every catalogue.

    `match` is an exception class, several, a class by name ("package.QualName"; subclasses count), or a function of
    the error. `code` None is the class's name (PaymentDeclined to PAYMENT_DECLINED). `scope`: whom the failure is
    about; "lane" costs no message an attempt and pauses the consumer for `delay`, or without one slows it down.
    `delay`: stay away at least so long.

    >>> Rule(KeyError, "permanent", "UNKNOWN_ORDER").kind.value
    'permanent'
    """

    match: Match
    kind: FailureKind | Literal["transient", "permanent", "unknown"] = FailureKind.PERMANENT
    code: str | None = None
    scope: Scope | Literal["message", "recipient", "tenant", "lane", "connection"] = Scope.MESSAGE
    delay: Duration | None = None

    def __post_init__(self) -> None:
        if self.kind not in tuple(FailureKind):
            raise ConfigurationError(f'Rule.kind is {self.kind!r}: it must be "transient", "permanent" or "unknown".')
        if self.scope not in tuple(Scope):
            raise ConfigurationError(f"Rule.scope is {self.scope!r}: it must be one of {', '.join(Scope)}.")
        object.__setattr__(self, "kind", FailureKind(self.kind))
        object.__setattr__(self, "scope", Scope(self.scope))
        if self.delay is not None:
            duration_ms(self.delay, field="Rule.delay")
        if not (callable(self.match) or isinstance(self.match, str | tuple)):
            raise ConfigurationError(f"Rule.match is {self.match!r}: give exception classes, a name, or a function.")

    def fits(self, error: BaseException) -> bool:
        """Whether this rule speaks of the error. A function that raises does not."""
        match self.match:
            case str():
                return any(self.match in _names(kind) for kind in type(error).__mro__)
            case type() | tuple():
                return isinstance(error, self.match)
            case _:
                return bool(_guarded(self.match, error))


def classify(
    error: BaseException, rules: Sequence[Rule] = (), *, now: UnixMs, mail_rules: MailRows = NO_RULES
) -> Failure:
    """What this error says about another attempt. `now` turns a Retry-After date into a delay."""
    members = _members(error)
    asked = _Asked(now=now, mail_rules=mail_rules)
    failures = [_classify_one(member, rules, asked) for member in members]
    return next((failure for failure in failures if not failure.is_retryable), failures[0])


def classify_status(
    status: int, *, retry_after: str | bytes | float | None = None, now: UnixMs, text: str | None = None
) -> Failure | Requeue | None:
    """What an HTTP status a handler returned means: None for success, `Requeue` for 425, else the failure."""
    entry = http.entry_of_status(status)
    if entry is None:
        return None
    delay_ms = http.parse_retry_after(retry_after, now)
    said = cut(text) if text is not None and text.strip() else f"The handler answered with HTTP status {status}."
    if status == http.REQUEUE_STATUS:
        return Requeue(None if delay_ms is None else delay_ms / 1_000, reason=said)
    return Failure(kind=entry.kind, code=entry.code, text=said, retry_after_ms=delay_ms)


def find_signal(error: BaseException) -> Signal | None:
    """The control signal this is or holds inside exception groups. Of several the most final one: DeadLetter,
    then RetryLater, then Requeue.
    """
    signals = [member for member in _members(error) if isinstance(member, Signal)]
    return min(signals, key=_finality, default=None)


def failure_of_unknown(error: BaseException) -> Failure:
    """A transient failure under the class's own name."""
    return _failure(error, _Found(kind=FailureKind.TRANSIENT, code=code_of(type(error).__name__)))


def error_type(error: BaseException) -> str:
    """The error's class as "module.QualName"; builtins without their module."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_text(error: BaseException) -> str:
    """What the error says, clean and cut; never empty: an error without a text says its class's name."""
    text = _guarded(str, error)
    return cut(text) if isinstance(text, str) and text.strip() else type(error).__name__


# ------------------------------------------------------------------------------------------------ one error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a probe may need beside the error."""

    now: UnixMs
    mail_rules: MailRows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    kind: FailureKind
    code: str
    retry_after_ms: Millis | None = None
    scope: Scope = Scope.MESSAGE
    cause: str | None = None
    text: str | None = None


def _failure(error: BaseException, found: _Found) -> Failure:
    return Failure(
        kind=found.kind,
        code=found.code,
        text=error_text(error) if found.text is None else found.text,
        error_type=error_type(error),
        retry_after_ms=found.retry_after_ms,
        scope=found.scope,
        cause=found.cause,
    )


def _classify_one(error: BaseException, rules: Sequence[Rule], asked: _Asked) -> Failure:
    causes = tuple(_causes(error))
    for cause in causes:
        for rule in rules:
            if rule.fits(cause):
                return _failure(error, _by_rule(rule, cause))
    own = _own(error, asked)
    found = own or next((found for cause in causes[1:] if (found := _own(cause, asked))), None)
    found = found or _of_context(error, asked)
    return failure_of_unknown(error) if found is None else _failure(error, _refined(error, found, asked))


def _by_rule(rule: Rule, error: BaseException) -> _Found:
    return _Found(
        kind=FailureKind(rule.kind),
        code=rule.code or code_of(type(error).__name__),
        retry_after_ms=None if rule.delay is None else duration_ms(rule.delay, field="Rule.delay"),
        scope=Scope(rule.scope),
    )


def _own(error: BaseException, asked: _Asked) -> _Found | None:
    """What the error itself says, without its causes."""
    for probe in _PROBES:
        found = _guarded(probe, error, asked)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return None


def _of_context(error: BaseException, asked: _Asked) -> _Found | None:
    for context in _contexts(error):
        found = _own(context, asked)
        if found is not None:
            return None if found.kind is FailureKind.PERMANENT else found
    return None


def _refined(error: BaseException, found: _Found, asked: _Asked) -> _Found:
    """A connection that failed somehow, under the code of how, where the errors below it say so."""
    if found.code != errors.CONNECTION_FAILED:
        return found
    # Clients raise their own error `from None`: the system's error is hidden from the traceback, but still there.
    below = (_own(deeper, asked) for deeper in _walk(error, lambda current: current.__cause__ or current.__context__))
    codes = (deeper.code for deeper in below if deeper is not None and deeper.code != errors.CONNECTION_FAILED)
    code = next((code for code in codes if code in _CONNECTION_CODES), found.code)
    return _Found(kind=found.kind, code=code, retry_after_ms=found.retry_after_ms)


_CONNECTION_CODES: Final = frozenset(
    {errors.TIMEOUT, "DNS_FAILED", "TLS_FAILED", "TLS_CERTIFICATE_INVALID", *system.BY_ERRNO_NAME}
)

# ------------------------------------------------------------------------------------------------ probes


def _by_verdict(error: BaseException, asked: _Asked) -> _Found | None:
    del asked
    return _taken_over(error.failure) if isinstance(error, Failed) else None


def _by_reply(error: BaseException, asked: _Asked) -> _Found | None:
    failure = failure_of_mail_error(error, rules=asked.mail_rules)
    return None if failure is None else _taken_over(failure)


def _by_aws_code(error: BaseException, asked: _Asked) -> _Found | None:
    failure = failure_of_api_error(error, text=error_text(error), rules=asked.mail_rules)
    if failure is not None:
        found = _taken_over(failure)
        return replace(found, text=None)  # the error's own text names the call, too
    response = _attribute(error, "response")
    if not isinstance(response, dict) or not isinstance(response.get("Error"), dict):
        return None
    metadata = response.get("ResponseMetadata")
    return _of_status(metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None, None, asked.now)


def _taken_over(failure: Failure) -> _Found:
    return _Found(
        kind=failure.kind,
        code=failure.code,
        retry_after_ms=failure.retry_after_ms,
        scope=failure.scope,
        cause=failure.cause,
        text=failure.text,
    )


def _by_status(error: BaseException, asked: _Asked) -> _Found | None:
    now = asked.now
    response = _attribute(error, "response")
    holders = ((error, ("status_code", "status", "http_status")), (response, ("status_code", "status")))
    for status in (_attribute(holder, name) for holder, names in holders for name in names):
        found = _of_status(status, _retry_after(error, response), now)
        if found is not None:
            return found
    if type(error).__module__.partition(".")[0] in _CODE_IS_STATUS:
        return _of_status(_attribute(error, "code"), _retry_after(error, response), now)
    return None


_CODE_IS_STATUS: Final = frozenset({"urllib", "google", "werkzeug"})
"""Packages whose errors carry the HTTP status as `code`; elsewhere that name means anything."""


def _of_status(status: Any, retry_after: Any, now: UnixMs) -> _Found | None:
    if not isinstance(status, int) or isinstance(status, bool) or not 400 <= status <= 599:  # noqa: PLR2004
        return None
    entry = http.entry_of_status(int(status))
    said = retry_after if isinstance(retry_after, str | bytes | int | float) else None
    return None if entry is None else _found(entry, http.parse_retry_after(said, now))


def _retry_after(error: BaseException, response: Any) -> Any:
    for holder in (response, error):
        get = _attribute(_attribute(holder, "headers"), "get")
        for name in ("Retry-After", "retry-after"):
            value = _guarded(get, name) if callable(get) else None
            if value is not None:
                return value
    return _attribute(error, "retry_after")


def _by_grpc(error: BaseException, asked: _Asked) -> _Found | None:
    del asked
    if not any(kind.__module__.partition(".")[0] == "grpc" for kind in type(error).__mro__):
        return None
    code = _attribute(error, "code")
    entry = BY_STATUS_NAME.get(str(_attribute(code() if callable(code) else None, "name")))
    return None if entry is None else _found(entry)


def _by_class(error: BaseException, asked: _Asked) -> _Found | None:
    del asked
    for kind in type(error).__mro__:
        for name in _names(kind):
            if name in errors.BY_NAME:
                return _found(errors.BY_NAME[name])
    return None


def _by_errno(error: BaseException, asked: _Asked) -> _Found | None:
    del asked
    number = error.errno if isinstance(error, OSError) else None
    entry = system.BY_ERRNO.get(number) if isinstance(number, int) else None
    code = _attribute(error, "code")
    entry = system.BY_ERRNO_NAME.get(code) if entry is None and isinstance(code, str) else entry
    return None if entry is None else _found(entry)


def _by_bare_name(error: BaseException, asked: _Asked) -> _Found | None:
    del asked
    for kind in type(error).__mro__:
        if kind.__name__ in errors.BY_BARE_NAME:
            return _found(errors.BY_BARE_NAME[kind.__name__])
        if "timeout" in kind.__name__.lower() or "timedout" in kind.__name__.lower():
            return _Found(kind=FailureKind.TRANSIENT, code=errors.TIMEOUT)
    return None


_PROBES: Final = (_by_verdict, _by_reply, _by_aws_code, _by_status, _by_grpc, _by_class, _by_errno, _by_bare_name)
"""In this order: what one answer of the other side says is more than what its class says."""


def _found(entry: Entry, retry_after_ms: Millis | None = None) -> _Found:
    return _Found(kind=entry.kind, code=entry.code, retry_after_ms=retry_after_ms, scope=entry.scope, cause=entry.cause)


# ------------------------------------------------------------------------------------------------ around an error


def _members(error: BaseException) -> tuple[BaseException, ...]:
    """The errors inside nested groups, in order; the error itself where it is no group."""
    waiting, members = [error], list[BaseException]()
    while waiting and len(members) < MAX_MEMBERS:
        current = waiting.pop()
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(reversed(current.exceptions))
        else:
            members.append(current)
    return tuple(members)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was explicitly raised from."""
    return _walk(error, lambda current: current.__cause__)


def _contexts(error: BaseException) -> Iterator[BaseException]:
    """What the error was raised while handling, unless it was raised `from` something."""
    walk = _walk(error, lambda current: None if current.__suppress_context__ else current.__context__)
    next(walk)
    return walk


def _walk(error: BaseException, step: Callable[[BaseException], BaseException | None]) -> Iterator[BaseException]:
    seen = set[int]()
    waiting: list[BaseException] = [error]
    while waiting and len(seen) < MAX_CHAIN:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(current.exceptions[:MAX_CHAIN])
        below = step(current)
        if below is not None:
            waiting.append(below)


def _names(kind: type) -> tuple[str, str]:
    module = str(kind.__module__)
    return f"{module}.{kind.__qualname__}", f"{module.partition('.')[0]}.{kind.__qualname__}"


def _finality(signal: Signal) -> int:
    order: tuple[type[Signal], ...] = (DeadLetter, RetryLater, Requeue)
    return next((at for at, kind in enumerate(order) if isinstance(signal, kind)), len(order))


def _attribute(holder: Any, name: str) -> Any:
    return None if holder is None else _guarded(getattr, holder, name, None)


def _guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns, or None where it raises: an error's own code may do anything."""
    try:
        return function(*arguments)
    except Exception:  # noqa: BLE001 - an error that cannot be asked says nothing
        return None
