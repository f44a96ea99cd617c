"""Amazon SES (v1, v2) and the error codes all AWS services share, by the code in the answer."""

from __future__ import annotations

import re
from typing import Final

from redrive.core.policy.failure import Entry, permanent, transient
from redrive.core.units import Millis

_COMMON: Final = "AWS: common errors; botocore: legacy retry handler"
_SES: Final = "Amazon SES API v1 and v2: errors of SendEmail"
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
_TRANSIENT_SES: Final = (
    "LimitExceeded LimitExceededException SendingPausedException AccountSendingPausedException "
    "ConfigurationSetSendingPausedException AccountSendingPaused ConfigurationSetSendingPaused "
    "ConcurrentModificationException"
)
_PERMANENT_SES: Final = (
    "MessageRejected MailFromDomainNotVerified MailFromDomainNotVerifiedException AccountSuspendedException "
    "BadRequestException NotFoundException ConfigurationSetDoesNotExist ConfigurationSetDoesNotExistException "
    "TemplateDoesNotExist InvalidTemplate"
)

BY_CODE: Final[dict[str, Entry]] = {
    **{name: transient(name, _COMMON) for name in _TRANSIENT_COMMON.split()},
    **{name: permanent(name, _COMMON) for name in _PERMANENT_COMMON.split()},
    **{name: transient(name, _SES) for name in _TRANSIENT_SES.split()},
    **{name: permanent(name, _SES) for name in _PERMANENT_SES.split()},
}
"""{"Throttling": row}. The code of a row is the service's own word, as its documents and dashboards use it."""

PAUSED_DELAY_MS: Final[Millis] = 900_000
"""Sending is paused by a person or by SES; a pause lasts longer than a back-off from one second."""
QUOTA_DELAY_MS: Final[Millis] = 6 * 3_600_000
"""A daily quota: look again a few times a day."""

_DAILY: Final = re.compile(r"daily", re.IGNORECASE)


def delay_of_code(code: str, text: str) -> Millis | None:
    """How long to stay away at least after this transient code; None: the consumer's backoff decides."""
    if "Paused" in code:
        return PAUSED_DELAY_MS
    return QUOTA_DELAY_MS if code.startswith("LimitExceeded") or _DAILY.search(text) else None
