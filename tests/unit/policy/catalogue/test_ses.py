"""Amazon SES: what its codes and texts mean, whom they are about, and how long to stay away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.catalogue.mail import MailCause, MailRule, merged
from redrive.core.policy.catalogue.ses import BY_CODE, PAUSED_DELAY_MS, QUOTA_DELAY_MS, ROWS, classify_api_error
from redrive.core.policy.failure import Failure, FailureKind, Scope

TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT


def failure(code: str, text: str = "", operation: str | None = "SendEmail") -> Failure:
    found = classify_api_error(code, text, operation=operation)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("Throttling", TRANSIENT),
        ("ServiceUnavailable", TRANSIENT),
        ("TooManyRequestsException", TRANSIENT),
        ("SendingPausedException", TRANSIENT),
        ("MessageRejected", PERMANENT),
        ("MailFromDomainNotVerified", PERMANENT),
        ("MailFromDomainNotVerifiedException", PERMANENT),
        ("AccountSuspendedException", PERMANENT),
        ("BadRequestException", PERMANENT),
        ("NotFoundException", PERMANENT),
        ("LimitExceededException", TRANSIENT),
        ("ConfigurationSetDoesNotExist", PERMANENT),
        ("ConfigurationSetSendingPaused", TRANSIENT),
        ("AccountSendingPaused", TRANSIENT),
    ],
)
def test_a_code_says_whether_another_attempt_can_help(code: str, kind: FailureKind) -> None:
    assert kind is BY_CODE[code].kind
    assert (kind, code) == (failure(code).kind, failure(code).code)


@pytest.mark.parametrize(
    ("code", "text", "cause", "scope", "delay_ms"),
    [
        ("Throttling", "Maximum sending rate exceeded.", MailCause.RATE, Scope.LANE, None),
        ("Throttling", "Daily message quota exceeded.", MailCause.QUOTA, Scope.LANE, QUOTA_DELAY_MS),
        ("LimitExceededException", "", MailCause.QUOTA, Scope.LANE, QUOTA_DELAY_MS),
        ("TooManyRequestsException", "Rate exceeded", MailCause.RATE, Scope.LANE, None),
        ("TooManyRequestsException", "", MailCause.RATE, Scope.LANE, None),
        ("Throttling", "", MailCause.RATE, Scope.LANE, None),
        ("SendingPausedException", "", MailCause.PAUSED, Scope.LANE, PAUSED_DELAY_MS),
        ("ConfigurationSetSendingPausedException", "", MailCause.PAUSED, Scope.TENANT, PAUSED_DELAY_MS),
        ("AccountSuspendedException", "", MailCause.SUSPENDED, Scope.LANE, 3_600_000),
        ("MessageRejected", "Email address is not verified.", MailCause.CONFIG, Scope.TENANT, None),
        ("MessageRejected", "Sending suspended: the account is suspended", MailCause.SUSPENDED, Scope.LANE, 3_600_000),
        ("MessageRejected", "Virus found", MailCause.CONTENT, Scope.MESSAGE, None),
        ("MailFromDomainNotVerified", "", MailCause.SENDER, Scope.TENANT, None),
    ],
)
def test_a_rate_is_soon_over_a_quota_and_a_pause_hold_the_lane(
    code: str, text: str, cause: MailCause, scope: Scope, delay_ms: int | None
) -> None:
    """Case ML-05: per second, per day, and what is about nobody's message."""
    found = failure(code, text)

    assert (str(cause), scope, delay_ms) == (found.cause, found.scope, found.retry_after_ms)


def test_a_throttle_of_another_service_is_an_ordinary_failure_of_one_message() -> None:
    for code, text in (("Throttling", "Rate exceeded"), ("TooManyRequestsException", "Rate exceeded")):
        found = failure(code, text, operation="PutItem")

        assert (TRANSIENT, Scope.MESSAGE, None) == (found.kind, found.scope, found.retry_after_ms)
    assert Scope.MESSAGE is failure("LimitExceededException", "too many tables", operation="CreateTable").scope


def test_an_own_rule_wins_and_one_of_low_priority_only_where_the_catalogue_knows_nothing() -> None:
    rules = merged(
        [
            MailRule(name="rejects", codes=("MessageRejected",), verdict="transient", scope="lane", delay="5m"),
            MailRule(name="rest", text="odd", priority=-1, verdict="permanent", kind="config", reason="ODD_ANSWER"),
        ]
    )

    rejected = classify_api_error("MessageRejected", "x", rules=rules)
    throttled = classify_api_error("Throttling", "odd", operation="SendEmail", rules=rules)
    unknown = classify_api_error("NeverHeardOf", "very odd", rules=rules)

    assert rejected is not None
    assert throttled is not None
    assert unknown is not None
    assert (TRANSIENT, Scope.LANE, 300_000) == (rejected.kind, rejected.scope, rejected.retry_after_ms)
    assert TRANSIENT is throttled.kind
    assert (PERMANENT, "ODD_ANSWER") == (unknown.kind, unknown.code)


def test_an_unknown_code_says_nothing() -> None:
    assert classify_api_error("NeverHeardOf", "x") is None


def test_every_row_has_a_source() -> None:
    assert [] == [row.what for row in ROWS if not row.source.strip()]


@given(st.text(max_size=40), st.text(max_size=200), st.none() | st.text(max_size=10))
def test_no_code_and_no_text_raises(code: str, text: str, operation: str | None) -> None:
    found = classify_api_error(code, text, operation=operation)

    assert found is None or found.code == code
