"""Amazon SES: what its codes mean and how long to stay away."""

from __future__ import annotations

import pytest

from redrive.core.policy.catalogue.ses import BY_CODE, PAUSED_DELAY_MS, QUOTA_DELAY_MS, delay_of_code
from redrive.core.policy.failure import FailureKind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("Throttling", FailureKind.TRANSIENT),
        ("ServiceUnavailable", FailureKind.TRANSIENT),
        ("TooManyRequestsException", FailureKind.TRANSIENT),
        ("SendingPausedException", FailureKind.TRANSIENT),
        ("MessageRejected", FailureKind.PERMANENT),
        ("MailFromDomainNotVerified", FailureKind.PERMANENT),
        ("MailFromDomainNotVerifiedException", FailureKind.PERMANENT),
        ("AccountSuspendedException", FailureKind.PERMANENT),
    ],
)
def test_a_code_says_whether_another_attempt_can_help(code: str, kind: FailureKind) -> None:
    assert kind is BY_CODE[code].kind


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("Throttling", "Maximum sending rate exceeded.", None),
        ("Throttling", "Daily message quota exceeded.", QUOTA_DELAY_MS),
        ("LimitExceededException", "", QUOTA_DELAY_MS),
        ("SendingPausedException", "", PAUSED_DELAY_MS),
    ],
)
def test_a_rate_is_soon_over_a_quota_and_a_pause_are_not(code: str, text: str, expected: int | None) -> None:
    assert expected == delay_of_code(code, text)
