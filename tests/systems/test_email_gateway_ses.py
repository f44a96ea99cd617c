"""System E through SES: signed requests, its errors, and what is lost on the way."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.systems.mail_gateway import Here, gateway

A, B = "a@x.example", "b@x.example"
SES = {"MAIL_TRANSPORT": "ses"}


async def test_a_mail_goes_through_ses_in_one_signed_request(tmp_path: Path) -> None:
    async with gateway(tmp_path, **SES) as at:
        await at.enqueue("o-1", to=(A, B))
        await at.sent("o-1")

    [mail] = at.ses.mails
    assert ((A, B), "no-reply@acme.example") == (mail.recipients, mail.request["FromEmailAddress"])
    assert "<o-1@acme.example>" == message_from_bytes(mail.content)["message-id"]
    assert [] == at.smtp.mails


@pytest.mark.parametrize("code", ["ServiceUnavailable", "InternalServiceErrorException"])
async def test_a_service_in_trouble_is_tried_again(tmp_path: Path, code: str) -> None:
    async with gateway(tmp_path, **SES) as at:
        at.ses.refuse("send", f"{code}: try later", times=2)
        await at.enqueue("o-1")
        await at.sent("o-1")

    assert [code] * 2 == [each["error_code"] for each in at.run.named("delivery.retry_scheduled")]
    assert 1 == len(at.ses.mails)


async def test_a_throttle_costs_no_attempt_and_slows_the_worker_down(here: Here) -> None:
    """Case ML-05, at SES."""
    async with here(MAX_ATTEMPTS="1", **SES) as at:
        at.ses.refuse("send", "TooManyRequestsException: Maximum sending rate exceeded.", times=2)
        await at.enqueue("o-1", "o-2")
        await at.sent("o-1", "o-2")

    assert [] == [*at.run.named("delivery.retry_scheduled"), *at.run.named("delivery.dead_lettered")]
    assert {"TooManyRequestsException"} == {each["reason_code"] for each in at.run.named("delivery.requeued")}
    assert {"rate"} == {each["cause"] for each in at.run.named("lane.slowed")}


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("MessageRejected: Email address is not verified.", "MessageRejected"),
        ("MailFromDomainNotVerifiedException: not verified", "MailFromDomainNotVerifiedException"),
        ("BadRequestException: no", "BadRequestException"),
    ],
)
async def test_what_ses_rejects_is_dead_at_once(tmp_path: Path, told: str, code: str) -> None:
    async with gateway(tmp_path, **SES) as at:
        at.ses.refuse("send", told)
        await at.enqueue("o-1")
        [letter] = await at.dead()

    assert (code, 1) == (letter.reason.code, letter.attempt_count)


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ("SendingPausedException: paused", "paused"),
        ("AccountSuspendedException: suspended", "suspended"),
        ("LimitExceededException: Daily message quota exceeded.", "quota"),
    ],
)
async def test_what_is_the_accounts_trouble_holds_the_lane_and_kills_nothing(
    tmp_path: Path, told: str, cause: str
) -> None:
    async with gateway(tmp_path, MAX_ATTEMPTS="1", **SES) as at:
        at.ses.refuse("send", told)
        await at.enqueue(*(f"o-{n}" for n in range(20)))
        await at.run.until(lambda: at.run.named("lane.held"))
        tried = at.ses.asked["send"]

    assert cause == at.run.named("lane.held")[0]["cause"]
    assert tried <= 5
    assert [] == at.run.named("delivery.dead_lettered")


async def test_wrong_credentials_hold_the_lane(tmp_path: Path) -> None:
    async with gateway(tmp_path, AWS_SECRET_ACCESS_KEY="wrong", MAX_ATTEMPTS="1", **SES) as at:
        await at.enqueue("o-1")
        await at.run.until(lambda: at.run.named("lane.held"))

    assert ("SignatureDoesNotMatch", "auth") == (
        at.run.named("lane.held")[0]["error_code"], at.run.named("lane.held")[0]["cause"],
    )  # fmt: skip


async def test_a_connection_lost_after_the_request_is_not_blindly_repeated(tmp_path: Path) -> None:
    async with gateway(tmp_path, **SES) as at:
        at.ses.drop("answer", times=1)
        await at.enqueue("o-1")
        await at.run.until(lambda: at.run.named("delivery.retry_scheduled"))

    [told] = at.run.named("delivery.retry_scheduled")
    assert ("SES_OUTCOME_UNKNOWN", True) == (told["error_code"], told["delay_ms"] >= 900_000)
    assert 1 == len(at.ses.mails)


async def test_an_address_that_bounced_or_complained_gets_no_more_mail(here: Here) -> None:
    """Case ML-03, where it leads to."""
    bounced = {"emailAddress": A, "status": "5.1.1", "diagnosticCode": "smtp; 550 5.1.1 user unknown"}
    bounce = {
        "notificationType": "Bounce",
        "bounce": {"bounceType": "Permanent", "bounceSubType": "General", "bouncedRecipients": [bounced]},
    }
    full = {
        "notificationType": "Bounce",
        "bounce": {
            "bounceType": "Transient",
            "bounceSubType": "MailboxFull",
            "bouncedRecipients": [{"emailAddress": B}],
        },
    }
    async with here() as at:
        await at.system.app.publish("email:events", {"Type": "Notification", "Message": json.dumps(bounce)})
        await at.system.app.publish("email:events", full)
        await at.system.app.publish("email:events", {"hello": 1})
        await at.run.until(lambda: at.run.processed("email:events") == 2)
        await at.enqueue("o-1", to=(A, B))
        await at.sent("o-1")
        await at.enqueue("o-2", to=(A,))
        await at.run.until(lambda: len(at.run.named("delivery.dead_lettered")) == 2)

    assert [(B,)] == [mail.recipients for mail in at.smtp.mails]
    assert {"NO_SES_EVENT", "SMTP_550"} == {each["reason_code"] for each in at.run.named("delivery.dead_lettered")}


def test_a_signature_is_the_one_that_aws_publishes_for_its_example() -> None:
    """AWS's test suite for signature version 4, "get-vanilla"."""
    from examples.email_gateway.sigv4 import canonical_request, signature_of

    headers = {"host": "example.amazonaws.com", "x-amz-date": "20150830T123600Z"}
    canonical = canonical_request("GET", "/", headers, body=b"")
    scope = "20150830/us-east-1/service/aws4_request"
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

    assert (
        "bb579772317eb040ac9ed261061d46c1f17a8133879d6129b6e1c25292927e63"
        == hashlib.sha256(canonical.encode()).hexdigest()
    )
    assert "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31" == signature_of(
        secret, scope, "20150830T123600Z", canonical=canonical
    )


def test_temporary_credentials_go_along_signed() -> None:
    from examples.email_gateway.sigv4 import Credentials, signed_headers

    credentials = Credentials(access_key="A", secret_key="S", region="r", session_token="T")
    headers = signed_headers(credentials, host="h", path="/p", body=b"{}", now=datetime(2026, 1, 31, tzinfo=UTC))

    assert ("T", "20260131T000000Z") == (headers["x-amz-security-token"], headers["x-amz-date"])
    assert "content-type;host;x-amz-date;x-amz-security-token" in headers["authorization"]
