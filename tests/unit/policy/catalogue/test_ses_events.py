"""What Amazon SES tells later about each recipient."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.catalogue.mail import MailCause
from redrive.core.policy.catalogue.ses_events import BOUNCES, RecipientVerdict, classify_event
from redrive.core.policy.failure import FailureKind, Scope

TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT


def bounce(kind: str, subtype: str, *recipients: dict[str, str]) -> dict[str, Any]:
    """As SES publishes it (recorded, with the addresses changed)."""
    return {
        "notificationType": "Bounce",
        "bounce": {
            "feedbackId": "0100017f",
            "bounceType": kind,
            "bounceSubType": subtype,
            "bouncedRecipients": list(recipients),
            "timestamp": "2026-01-31T12:00:00.000Z",
            "reportingMTA": "dns; a8-70.smtp-out.amazonses.example",
        },
        "mail": {"messageId": "0100017f-m", "destination": [each["emailAddress"] for each in recipients]},
    }


def recipient(address: str = "a@example.org", *, status: str = "", diagnosis: str = "") -> dict[str, str]:
    told = {"action": "failed", "status": status, "diagnosticCode": diagnosis}
    return {"emailAddress": address, **{name: value for name, value in told.items() if value}}


def only(event: Any) -> RecipientVerdict:
    (verdict,) = classify_event(event)
    return verdict


DENIED = bounce("Transient", "General", recipient(status="5.3.0", diagnosis="smtp; 550 5.3.0 denied"))
COMPLAINT = {
    "eventType": "Complaint",
    "complaint": {"complainedRecipients": [{"emailAddress": "a@example.org"}], "complaintFeedbackType": "abuse"},
    "mail": {"messageId": "m"},
}


@pytest.mark.parametrize(
    ("event", "kind", "cause", "suppress"),
    [
        (DENIED, PERMANENT, MailCause.SYSTEM, False),
        (bounce("Transient", "MailboxFull", recipient(status="5.2.2")), TRANSIENT, MailCause.MAILBOX_FULL, False),
        (bounce("Permanent", "NoEmail", recipient(status="5.1.1")), PERMANENT, MailCause.BAD_RECIPIENT, True),
        (bounce("Permanent", "Suppressed", recipient(status="5.1.1")), PERMANENT, MailCause.SUPPRESSED, True),
        (bounce("Undetermined", "Undetermined", recipient()), TRANSIENT, MailCause.OTHER, False),
        (bounce("Transient", "General", recipient()), TRANSIENT, MailCause.OTHER, False),
        (COMPLAINT, PERMANENT, MailCause.COMPLAINT, True),
    ],
)
def test_the_diagnosis_says_more_than_the_type_of_a_bounce(
    event: dict[str, Any], kind: FailureKind, cause: MailCause, suppress: bool
) -> None:
    """Case ML-03, a to f and i."""
    found = only(event)

    assert found.failure is not None
    assert (kind, cause, suppress) == (found.failure.kind, found.cause, found.suppress)
    assert Scope.RECIPIENT is found.failure.scope or cause in {MailCause.SYSTEM, MailCause.OTHER}


def test_two_recipients_of_one_event_have_a_verdict_each() -> None:
    """Case ML-03 g."""
    event = bounce("Transient", "General", recipient("a@x", status="5.1.1"), recipient("b@x", status="4.4.7"))

    first, second = classify_event(event)

    assert first.failure is not None
    assert second.failure is not None
    assert [("a@x", PERMANENT), ("b@x", TRANSIENT)] == [
        (first.recipient, first.failure.kind), (second.recipient, second.failure.kind),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrap",
    [
        json.dumps,
        lambda event: json.dumps({"Type": "Notification", "Message": json.dumps(event)}),
        lambda event: {"Type": "Notification", "MessageId": "x", "Message": json.dumps(event)},
        lambda event: json.dumps({"body": json.dumps({"Message": json.dumps(event)})}).encode(),
        lambda event: {"detail-type": "Email Bounced", "detail": event},
    ],
)
def test_an_envelope_changes_nothing(wrap: Any) -> None:
    """Case ML-03 h."""
    assert classify_event(DENIED) == classify_event(wrap(DENIED))


def test_a_suppressed_address_is_no_new_bounce_of_ours() -> None:
    """Case ML-03 d."""
    suppressed = only(bounce("Permanent", "OnAccountSuppressionList", recipient()))
    bad = only(bounce("Permanent", "NoEmail", recipient()))

    assert (False, True) == (suppressed.counts_as_bounce, bad.counts_as_bounce)


def test_a_delivery_a_delay_and_a_rejection_are_told_too() -> None:
    delivered = {"eventType": "Delivery", "delivery": {"recipients": ["a@x", "b@x"]}, "mail": {"messageId": "m"}}
    delayed = {
        "eventType": "DeliveryDelay",
        "deliveryDelay": {"delayType": "MailboxFull", "delayedRecipients": [recipient("a@x")]},
    }
    rejected = {"eventType": "Reject", "reject": {"reason": "Bad content"}, "mail": {"destination": ["a@x"]}}

    assert [None, None] == [each.failure for each in classify_event(delivered)]
    delay, rejection = only(delayed).failure, only(rejected).failure
    assert delay is not None
    assert rejection is not None
    assert (TRANSIENT, PERMANENT, "Bad content") == (delay.kind, rejection.kind, rejection.text)


def test_every_row_has_a_source_and_stands_once() -> None:
    pairs = [(row.type, row.subtype) for row in BOUNCES]

    assert len(pairs) == len(set(pairs))
    assert all(row.source for row in BOUNCES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=20,
)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "eventType": JSON | st.sampled_from(["Bounce", "Complaint", "Reject", "Delivery", "DeliveryDelay"]),
        "bounce": JSON | st.fixed_dictionaries({"bouncedRecipients": JSON, "bounceType": JSON, "bounceSubType": JSON}),
        "complaint": JSON | st.fixed_dictionaries({"complainedRecipients": JSON}),
        "delivery": JSON,
        "reject": JSON,
        "mail": JSON,
        "Message": JSON,
        "detail": JSON,
    },
)


@given(JSON | PARTS | st.text() | st.binary())
def test_junk_has_verdicts_or_none_and_never_raises(event: Any) -> None:
    for verdict in classify_event(event):
        assert isinstance(verdict.recipient, str)


def test_events_nested_without_end_and_texts_of_megabytes_end() -> None:
    deep: Any = {"eventType": "Bounce"}
    for _ in range(50):
        deep = {"Message": json.dumps(deep)} if len(str(deep)) < 10_000 else {"detail": deep}

    assert () == classify_event(deep)
    assert () == classify_event("[" * 100_000)
    assert () == classify_event("x" * 10**7)
