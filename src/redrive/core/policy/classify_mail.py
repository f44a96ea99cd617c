"""The part of classification that knows mail: errors of smtplib, aiosmtplib, SES clients, by name and shape.

None of these libraries is imported. What a server answered is classified by the catalogues; a connection lost while a
message's content was on its way is an unknown outcome: the server may have taken it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from redrive.core.policy.catalogue import ses, smtp
from redrive.core.policy.catalogue.mail import NO_RULES, MailRows
from redrive.core.policy.failure import Failure
from redrive.core.text import cut

MAX_RECIPIENTS: Final = 1_000
"""How many refused recipients of one error are looked at."""
MAX_FRAMES: Final = 200

PACKAGES: Final = frozenset({"smtplib", "aiosmtplib"})
_LOST: Final = frozenset({"SMTPServerDisconnected", "SMTPReadTimeoutError", "SMTPTimeoutError"})
_SENDING: Final = {("smtplib", "data"): "q", ("aiosmtplib", "execute_data_command"): "start_response"}
"""{(package, function that sends the content): the local variable it sets once the server has said "go on"}."""


def failure_of_mail_error(error: BaseException, *, rules: MailRows = NO_RULES) -> Failure | None:
    """What an error of a mail client says; None where it is none, or says nothing about the server's answer."""
    if not PACKAGES.intersection(kind.__module__.partition(".")[0] for kind in type(error).__mro__):
        return None
    refused = tuple(_refusals(getattr(error, "recipients", None)))
    if refused:
        return worst(smtp.classify_reply(text, code=code, rules=rules).failure for code, text in refused)
    if any(kind.__name__ in _LOST for kind in type(error).__mro__):
        return smtp.outcome_unknown(str(error)) if _was_sending(error) else None
    code = _first(error, "smtp_code", "code")
    text = _first(error, "smtp_error", "message")
    if not _is_code(code) or not isinstance(text, str | bytes):
        return None
    return smtp.classify_reply(text, code=code, rules=rules).failure


def failure_of_api_error(error: BaseException, *, text: str, rules: MailRows = NO_RULES) -> Failure | None:
    """What an error in the shape of botocore's ClientError says; None where it has no code that is known."""
    response = getattr(error, "response", None)
    said = response.get("Error") if isinstance(response, dict) else None
    code = said.get("Code") if isinstance(said, dict) else None
    if not isinstance(code, str):
        return None
    message = said.get("Message") if isinstance(said, dict) else None
    told = message if isinstance(message, str) and message.strip() else text
    operation = getattr(error, "operation_name", None)
    return ses.classify_api_error(
        code, cut(told), operation=operation if isinstance(operation, str) else None, rules=rules
    )


def worst(failures: Iterable[Failure]) -> Failure:
    """Of several recipients' failures the one that decides: what is retryable, for some can still be reached, and of
    those the one that asks for the longest wait.
    """
    every = list(failures)
    open_ones = [failure for failure in every if failure.is_retryable]
    return max(open_ones, key=lambda failure: failure.retry_after_ms or 0, default=every[0])


def _refusals(recipients: Any) -> Iterator[tuple[int, str | bytes]]:
    """(code, text) of each: smtplib has {address: (code, text)}, aiosmtplib a list of errors."""
    if isinstance(recipients, Mapping):
        found: list[Any] = list(recipients.values())
    else:
        found = list(recipients) if isinstance(recipients, list | tuple) else []
    for each in found[:MAX_RECIPIENTS]:
        reply = each if isinstance(each, tuple) else (getattr(each, "code", None), getattr(each, "message", None))
        if len(reply) >= 2 and _is_code(reply[0]) and isinstance(reply[1], str | bytes):  # noqa: PLR2004 - a pair
            yield reply[0], reply[1]


def _was_sending(error: BaseException) -> bool:
    """Whether the connection was lost while the content was on its way, or after it: the traceback tells where."""
    trace = error.__traceback__
    for _ in range(MAX_FRAMES):
        if trace is None:
            return False
        frame = trace.tb_frame
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        mark = _SENDING.get((package, frame.f_code.co_name))
        if mark is not None:
            # A version that names it otherwise: better a message that waits too long than one sent twice at once.
            return mark in frame.f_locals or mark not in frame.f_code.co_varnames
        trace = trace.tb_next
    return False


def _is_code(code: Any) -> bool:
    return isinstance(code, int) and not isinstance(code, bool) and 200 <= code <= 599  # noqa: PLR2004


def _first(error: BaseException, *names: str) -> Any:
    return next((value for name in names if (value := getattr(error, name, None)) is not None), None)
