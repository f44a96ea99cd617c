"""What errors of mail clients say, by name and shape, and whom a failure is about."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.policy.catalogue.mail import MailRule, merged
from redrive.core.policy.classify import Failure, FailureKind, Rule, classify
from redrive.core.policy.failure import Failed, Scope
from redrive.errors import ConfigurationError

NOW = 1_700_000_000_000
TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT


def an_error(module: str, name: str, **attributes: Any) -> BaseException:
    """As that library has it, without the library."""
    error = type(name, (Exception,), {"__module__": module, "__qualname__": name})("x")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def kind_and_code(error: BaseException, *rules: Rule) -> tuple[FailureKind, str]:
    failure = classify(error, rules, now=NOW)
    return failure.kind, failure.code


def test_refusals_of_aiosmtplib_come_as_a_list_of_errors() -> None:
    refused = [
        an_error("aiosmtplib.errors", "SMTPRecipientRefused", code=550, message="5.1.1 x"),
        an_error("aiosmtplib.errors", "SMTPRecipientRefused", code=451, message="4.2.1 y"),
    ]

    assert (TRANSIENT, "SMTP_451") == kind_and_code(
        an_error("aiosmtplib.errors", "SMTPRecipientsRefused", recipients=refused)
    )


@pytest.mark.parametrize("junk", [None, 5, "x", [None], [5], {"a": None}, {"a": (1,)}, {"a": ("x", "y")}])
def test_recipients_that_are_junk_say_nothing(junk: Any) -> None:
    error = an_error("smtplib", "SMTPRecipientsRefused", recipients=junk)

    assert (TRANSIENT, "SMTP_RECIPIENTS_REFUSED") == kind_and_code(error)


def test_an_aws_error_of_a_call_that_sends_is_about_the_lane_and_of_another_about_its_message() -> None:
    response = {"Error": {"Code": "Throttling", "Message": "Rate exceeded"}}
    scopes = [
        classify(an_error("botocore.exceptions", "ClientError", response=response, operation_name=name), now=NOW).scope
        for name in ("SendEmail", "PutItem", None)
    ]

    assert [Scope.LANE, Scope.MESSAGE, Scope.MESSAGE] == scopes


def test_a_failure_that_is_known_already_is_taken_as_it_is() -> None:
    failure = Failure(kind=FailureKind.UNKNOWN, code="ODD", text="odd", retry_after_ms=7, scope=Scope.TENANT, cause="x")
    error = RuntimeError("outer")
    error.__cause__ = Failed(failure)

    found = classify(error, now=NOW)

    assert (failure.kind, "ODD", "odd", 7, Scope.TENANT, "x") == (
        found.kind, found.code, found.text, found.retry_after_ms, found.scope, found.cause,
    )  # fmt: skip
    assert (PERMANENT, "MINE") == kind_and_code(error, Rule(Failed, "permanent", "MINE"))


def test_a_rule_says_whom_it_is_about_and_how_long_to_stay_away() -> None:
    found = classify(KeyError("x"), [Rule(KeyError, "transient", "CLOSED", scope="lane", delay="10m")], now=NOW)

    assert (Scope.LANE, 600_000) == (found.scope, found.retry_after_ms)
    with pytest.raises(ConfigurationError, match=r"Rule\.scope"):
        Rule(KeyError, scope="world")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"Rule\.delay"):
        Rule(KeyError, delay="soon")


def test_own_rules_of_mail_are_asked_before_the_catalogue() -> None:
    error = an_error("smtplib", "SMTPDataError", smtp_code=554, smtp_error=b"5.7.1 no")
    rules = merged([MailRule(name="mine", codes=[554], verdict="transient", reason="MINE")])

    found = classify(error, now=NOW, mail_rules=rules)

    assert (TRANSIENT, "MINE") == (found.kind, found.code)
