"""A team's own rules over the catalogue of mail answers, and the catalogue as data."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.policy.catalogue.mail import CAUSES, MailCause, MailRule, mail_rule_from, merged
from redrive.core.policy.catalogue.smtp import BROKEN, LOST_AFTER_DATA, ROWS, classify_reply
from redrive.core.policy.catalogue.smtp_codes import BASIC, CLASSES, ENHANCED
from redrive.core.policy.failure import FailureKind, Scope
from redrive.errors import ConfigurationError

TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT
PROBLEM = "554 IP=192.0.2.80 - A problem occurred. Ask your postmaster for help."


def test_an_own_rule_wins_over_the_catalogue() -> None:
    rules = merged(
        [
            MailRule(
                name="t-online", text="a problem occurred", codes=(554,), verdict="transient", kind="rate",
                scope="lane", delay="10m", reason="T_ONLINE_LIMIT",
            )
        ]
    )  # fmt: skip

    failure = classify_reply(PROBLEM, rules=rules).failure

    assert PERMANENT is classify_reply(PROBLEM).failure.kind
    assert (TRANSIENT, "T_ONLINE_LIMIT", Scope.LANE, 600_000, "rate") == (
        failure.kind, failure.code, failure.scope, failure.retry_after_ms, failure.cause,
    )  # fmt: skip


def test_of_two_that_fit_the_higher_priority_is_asked_first_and_of_equals_the_earlier() -> None:
    def decided(*priorities: int) -> str:
        rules = [
            MailRule(name=f"r{at}", text="problem", priority=priority, reason=f"R{at}")
            for at, priority in enumerate(priorities)
        ]
        return classify_reply(PROBLEM, rules=merged(rules)).failure.code

    assert ["R0", "R1", "R0", "R1"] == [decided(0, 0), decided(0, 5), decided(9, 5), decided(-1, 0)]


def test_a_rule_below_zero_is_asked_only_where_the_catalogue_knows_nothing() -> None:
    rules = merged([MailRule(name="rest", codes=(550, 599), verdict="transient", priority=-1)])

    assert PERMANENT is classify_reply("550 5.1.1 user unknown", rules=rules).failure.kind
    assert TRANSIENT is classify_reply("599 what is this", rules=rules).failure.kind
    assert PERMANENT is classify_reply("598 what is this", rules=rules).failure.kind


def test_a_rule_may_give_an_enhanced_code_with_any_number() -> None:
    rules = merged([MailRule(name="policy", enhanced="5.7.*", verdict="transient")])

    assert TRANSIENT is classify_reply("550 5.7.999 no", rules=rules).failure.kind
    assert PERMANENT is classify_reply("550 5.1.1 no", rules=rules).failure.kind


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"name": "  ", "text": "x"}, "A mail rule has no name"),
        ({"name": "a"}, 'Mail rule "a": it fits everything'),
        ({"name": "a", "text": "("}, 'Mail rule "a": text is no regular expression'),
        ({"name": "a", "text": ""}, 'Mail rule "a": text has 0 characters'),
        ({"name": "a", "text": 5}, 'Mail rule "a": text'),
        ({"name": "a", "text": "x", "verdict": "permanant"}, "Did you mean permanent?"),
        ({"name": "a", "text": "x", "kind": "quotas"}, "Did you mean quota?"),
        ({"name": "a", "text": "x", "scope": "world"}, "scope is 'world'"),
        ({"name": "a", "text": "x", "delay": "soon"}, 'mail rule "a": delay'),
        ({"name": "a", "codes": [200]}, "codes has 200"),
        ({"name": "a", "codes": [True]}, "codes has True"),
        ({"name": "a", "codes": 5.5}, "codes has None"),
        ({"name": "a", "enhanced": "5.7"}, "enhanced is '5.7'"),
        ({"name": "a", "text": "x", "priority": "high"}, "priority is 'high'"),
        ({"name": "a", "text": "x", "prioritiy": 1}, "Did you mean priority?"),
        ({"text": "x"}, "A mail rule in f.toml has no name"),
        ("x", "which is no table"),
    ],
)
def test_a_wrong_rule_is_refused_by_its_name_and_field(rule: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        mail_rule_from(rule, source="f.toml")

    assert said in str(caught.value)


def test_every_row_has_a_source_and_every_cause_a_meaning() -> None:
    rows = (*ROWS, *CLASSES, BROKEN, LOST_AFTER_DATA)

    assert [] == [row.what for row in rows if not row.source.strip() or not row.what.strip()]
    assert set(CAUSES) == set(MailCause)


def test_the_codes_of_the_standards_are_all_there() -> None:
    basic = {code for row in BASIC for code in row.codes}
    enhanced = {row.what.partition(" ")[0] for row in ENHANCED} | {"X.2.2"}

    assert {421, 432, 450, 451, 452, 454, 455, 500, 501, 502, 503, 504, 521, 530, 534, 535, 538} <= basic
    assert {550, 551, 552, 553, 554, 555, 556} <= basic
    assert {
        "X.0.0", *(f"X.1.{at}" for at in range(11)), *(f"X.2.{at}" for at in range(5)),
        *(f"X.3.{at}" for at in range(7)), *(f"X.4.{at}" for at in range(8)), *(f"X.5.{at}" for at in range(7)),
        *(f"X.6.{at}" for at in range(11)), *(f"X.7.{at}" for at in range(31)),
    } == enhanced  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "cause", "scope"),
    [
        ("454 4.7.0 Temporary authentication failure", MailCause.AUTH, Scope.LANE),
        ("535 5.7.8 bad password", MailCause.AUTH, Scope.LANE),
        ("454 Throttling failure: Maximum sending rate exceeded.", MailCause.RATE, Scope.LANE),
        ("454 Throttling failure: Daily message quota exceeded.", MailCause.QUOTA, Scope.LANE),
        ("421 4.7.0 Too many connections", MailCause.CONNECTION, Scope.CONNECTION),
        ("450 4.2.1 The user you write to is receiving mail at a rate that prevents", MailCause.RATE, Scope.RECIPIENT),
        ("550 5.1.1 <x@example.org> user unknown", MailCause.BAD_RECIPIENT, Scope.RECIPIENT),
        ("550 5.2.1 The email account you tried to reach is disabled", MailCause.MAILBOX_DISABLED, Scope.RECIPIENT),
        ("550 5.7.26 Unauthenticated email is not accepted", MailCause.SENDER, Scope.TENANT),
        ("421 4.7.0 [TSS04] Messages temporarily deferred due to user complaints", MailCause.BLOCKED, Scope.CONNECTION),
        ("550 5.4.1 Recipient address rejected: Access denied", MailCause.BAD_RECIPIENT, Scope.RECIPIENT),
        ("552 5.3.4 Message size exceeds fixed limit", MailCause.CONTENT, Scope.MESSAGE),
        ("503 5.5.1 bad sequence", MailCause.PROTOCOL, Scope.MESSAGE),
        ("530 5.7.0 Must issue a STARTTLS command first", MailCause.AUTH, Scope.LANE),
        ("554 5.7.1 Relay access denied", MailCause.CONFIG, Scope.TENANT),
        ("556 5.1.10 Recipient address has null MX", MailCause.BAD_RECIPIENT, Scope.RECIPIENT),
        ("554 5.4.6 Too many hops", MailCause.NETWORK, Scope.MESSAGE),
    ],
)  # fmt: skip
def test_a_reply_says_what_it_is_about_and_whom_it_concerns(reply: str, cause: MailCause, scope: Scope) -> None:
    found = classify_reply(reply)

    assert (cause, scope) == (found.cause, found.failure.scope)
