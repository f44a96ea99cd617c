"""Amazon SES (v1, v2) and the error codes all AWS services share, by the code in the answer.

All of SES's refusals come as HTTP 400, so the status says nothing; the code does, and for some codes only the text: the
sending rate and the daily quota share `Throttling`, an unproved sender and a virus share `MessageRejected`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from redrive.core.policy.catalogue.mail import NO_RULES, Answer, MailCause, MailRow, MailRows, failure_by, find_row
from redrive.core.policy.failure import Entry, Failure, FailureKind, Scope, permanent, transient
from redrive.core.units import Millis

_C, _S = MailCause, Scope
_TRANSIENT, _PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT
_COMMON: Final = "AWS: common errors; botocore: legacy retry handler"
_TRANSIENT_COMMON: Final = (
    "Throttling ThrottlingException ThrottledException RequestThrottled RequestThrottledException RequestLimitExceeded "
    "TooManyRequestsException TooManyRequests ProvisionedThroughputExceededException BandwidthLimitExceeded SlowDown "
    "PriorRequestNotComplete TransactionInProgressException ServiceUnavailable ServiceUnavailableException "
    "InternalFailure InternalError InternalServerError InternalServiceError InternalServiceErrorException "
    "RequestTimeout RequestTimeoutException RequestExpired ExpiredToken ExpiredTokenException AccessDenied "
    "AccessDeniedException InvalidClientTokenId SignatureDoesNotMatch UnrecognizedClientException"
)
_PERMANENT_COMMON: Final = (
    "InvalidParameterValue InvalidParameterCombination MissingParameter ValidationError "
    "ValidationException MalformedQueryString"
)

PAUSED_DELAY_MS: Final[Millis] = 900_000
"""Sending is paused by a person or by SES; a pause lasts longer than a back-off from one second."""
QUOTA_DELAY_MS: Final[Millis] = 3_600_000
"""A daily quota counts the last 24 hours, so some of it is free again soon: one try an hour finds out."""
CREDENTIALS_HOLD_MS: Final[Millis] = 300_000
"""Wrong credentials are wrong until a person has changed them."""
SUSPENDED_DELAY_MS: Final[Millis] = 3_600_000
"""An account that is shut down opens after a talk with the service."""

_V1: Final = "Amazon SES API v1: SendEmail, SendRawEmail"
_V2: Final = "Amazon SES API v2: SendEmail"
_BOTH: Final = "Amazon SES API v1 and v2: errors of SendEmail"


def _row(codes: str, what: str, cause: MailCause, *, verdict: FailureKind, **more: object) -> MailRow:
    given = {"source": _BOTH, **more}
    return MailRow(what=what, cause=cause, verdict=verdict, codes=frozenset(codes.split()), **given)  # type: ignore[arg-type]


ROWS: Final = (
    _row("TooManyRequestsException TooManyRequests", "too many calls of the API", _C.RATE, verdict=_TRANSIENT,
         scope=_S.LANE, source=_V2),
    _row("LimitExceeded LimitExceededException", "a limit of the account, such as its daily quota", _C.QUOTA,
         verdict=_TRANSIENT, delay_ms=QUOTA_DELAY_MS),
    _row("AccountSuspendedException AccountSuspended", "the account's sending was shut down for good",
         _C.SUSPENDED, verdict=_PERMANENT, delay_ms=SUSPENDED_DELAY_MS, source=_V2),
    _row("SendingPausedException SendingPaused AccountSendingPausedException AccountSendingPaused",
         "the account's sending is paused", _C.PAUSED, verdict=_TRANSIENT, delay_ms=PAUSED_DELAY_MS),
    _row("ConfigurationSetSendingPausedException ConfigurationSetSendingPaused",
         "sending through this configuration set is paused", _C.PAUSED, verdict=_TRANSIENT, scope=_S.TENANT,
         delay_ms=PAUSED_DELAY_MS, source=_V1),
    _row("MailFromDomainNotVerified MailFromDomainNotVerifiedException", "the MAIL FROM domain is not verified",
         _C.SENDER, verdict=_PERMANENT),
    _row("MessageRejected", "the message was refused", _C.CONTENT, verdict=_PERMANENT),
    _row("ConfigurationSetDoesNotExist ConfigurationSetDoesNotExistException", "no such configuration set",
         _C.CONFIG, verdict=_PERMANENT, source=_V1),
    _row("TemplateDoesNotExist TemplateDoesNotExistException", "no such template", _C.CONFIG, verdict=_PERMANENT,
         source=_V1),
    _row("InvalidTemplate InvalidRenderingParameterException MissingRenderingAttributeException",
         "the template does not render", _C.CONTENT, verdict=_PERMANENT, source=_V1),
    _row("NotFoundException NotFound", "a resource that the call names does not exist", _C.CONFIG, verdict=_PERMANENT,
         source=_V2),
    _row("BadRequestException BadRequest", "the call is wrong", _C.PROTOCOL, verdict=_PERMANENT, source=_V2),
    _row("ConcurrentModificationException", "somebody changes the same resource", _C.SYSTEM, verdict=_TRANSIENT,
         source=_V2),
)  # fmt: skip
"""Asked by code, after the texts."""


def _text(codes: str, what: str, pattern: str, *, cause: MailCause, **more: object) -> MailRow:
    return MailRow(what=what, cause=cause, codes=frozenset(codes.split()), text=re.compile(pattern), **more)  # type: ignore[arg-type]


_THROTTLES: Final = (
    "Throttling ThrottlingException TooManyRequestsException TooManyRequests LimitExceeded LimitExceededException"
)
TEXTS: Final = (
    _text(_THROTTLES, "the daily quota", r"daily|24[- ]hour", cause=_C.QUOTA,
          verdict=_TRANSIENT, delay_ms=QUOTA_DELAY_MS,
          source="Amazon SES: errors when the daily quota is used up"),
    _text(_THROTTLES, "the sending rate", "sending rate", cause=_C.RATE, verdict=_TRANSIENT,
          scope=_S.LANE, source="Amazon SES: errors when the sending rate is exceeded"),
    _text("MessageRejected", "sender or recipient is not verified", r"not verified|identit(y|ies) failed the check",
          cause=_C.CONFIG, verdict=_PERMANENT, source="Amazon SES: email address not verified, sandbox"),
    _text("MessageRejected", "on the suppression list", "suppress|blacklist", cause=_C.SUPPRESSED, verdict=_PERMANENT,
          source="Amazon SES: global suppression list"),
    _text("MessageRejected AccountSuspendedException", "sending is shut down",
          "(has been |is )(shut ?down|suspended)", cause=_C.SUSPENDED, verdict=_PERMANENT,
          delay_ms=SUSPENDED_DELAY_MS, source="Amazon SES: account under review"),
)  # fmt: skip
"""Asked first: where one code has several meanings."""

BY_CODE: Final[dict[str, Entry]] = {
    **{name: transient(name, _COMMON) for name in _TRANSIENT_COMMON.split()},
    **{name: permanent(name, _COMMON) for name in _PERMANENT_COMMON.split()},
    **{
        str(name): Entry(
            kind=row.verdict or _TRANSIENT,
            code=str(name),
            source=row.source,
            delay_ms=row.delay_ms,
            scope=row.about,
            cause=str(row.cause),
        )
        for row in ROWS
        for name in sorted(map(str, row.codes))
        if name not in _TRANSIENT_COMMON.split()
    },
}
"""{"Throttling": row}. The code of a row is the service's own word, as its documents and dashboards use it."""

SEND_OPERATIONS: Final = frozenset(
    {"SendEmail", "SendRawEmail", "SendTemplatedEmail", "SendBulkEmail", "SendBulkTemplatedEmail",
     "SendCustomVerificationEmail"}
)  # fmt: skip
"""Calls of SES that send. In the answer to one of them a shared code such as `Throttling` is about the sending lane."""

_SHARED_RATE: Final = MailRow(
    what="throttled while sending",
    cause=MailCause.RATE,
    verdict=_TRANSIENT,
    scope=Scope.LANE,
    codes=frozenset({"Throttling", "ThrottlingException", "TooManyRequestsException", "TooManyRequests"}),
    source="Amazon SES API v1 and v2: throttling of a call that sends",
)


_SHARED_AUTH: Final = MailRow(
    what="a call that sends is not signed as it should be, or not allowed",
    cause=MailCause.AUTH,
    verdict=_TRANSIENT,
    delay_ms=CREDENTIALS_HOLD_MS,
    codes=frozenset(
        {"ExpiredToken", "ExpiredTokenException", "AccessDenied", "AccessDeniedException", "InvalidClientTokenId",
         "SignatureDoesNotMatch", "UnrecognizedClientException", "InvalidSignatureException"}
    ),
    source="AWS: common errors, of a call that sends",
)  # fmt: skip
SHARED: Final = (_SHARED_RATE, _SHARED_AUTH)
"""Codes of all AWS services, in the answer to a call that sends."""


def classify_api_error(
    code: str, text: str, *, operation: str | None = None, rules: MailRows = NO_RULES
) -> Failure | None:
    """What an error of SES, or of another AWS service, means; None where the code is in no row.

    `operation`: the call that failed, None where that is not known. Whatever a call says that does not send is about
    its own message: a throttled table holds no lane.
    """
    failure = _failure_of(code, text, operation, rules=rules)
    if failure is None or operation is None or operation in SEND_OPERATIONS:
        return failure
    return replace(failure, scope=Scope.MESSAGE)


def _failure_of(code: str, text: str, operation: str | None, *, rules: MailRows) -> Failure | None:
    entry = BY_CODE.get(code)
    digit = 5 if entry is not None and entry.kind is _PERMANENT else 4
    answer = Answer(api=code, text=text.lower(), digit=digit)
    row = find_row(answer, rules.first) or find_row(answer, TEXTS)
    if row is None and operation in SEND_OPERATIONS:
        row = find_row(answer, SHARED)
    row = row or (find_row(answer, rules.last) if entry is None else None)
    if row is not None:
        return failure_by(row, answer, code=code, text=text)
    if entry is None:
        return None
    waits = entry.kind is not _PERMANENT or entry.scope is Scope.LANE
    return Failure(
        kind=entry.kind,
        code=code,
        text=text,
        retry_after_ms=entry.delay_ms if waits else None,
        scope=entry.scope,
        cause=entry.cause,
    )
