"""What a person changes of a queue's fairness: it holds over the consumer's word, and only as far as it says."""

from __future__ import annotations

import pytest

from redrive.core.message import HEADER_LETTER, Message
from redrive.core.policy.control import (
    MAX_QUARANTINED,
    QUARANTINED,
    Asides,
    Control,
    Kind,
    Pause,
    Quarantine,
    control_from_json,
    control_json,
    controlled,
    merged,
    released,
    with_quarantined,
    without_limits,
)
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import parse_rate
from redrive.errors import ConfigurationError, SchemaTooNewError

OWN = Fair(batch=3, weights={"acme": 2}, rate={"trial": "1/s", "*": "100/s"})


def test_without_a_control_the_consumers_word_holds() -> None:
    assert controlled(OWN, None) is OWN
    assert controlled(OWN, Control(queue="mail")) is OWN


def test_a_batch_limit_leaves_everything_else() -> None:
    found = controlled(OWN, Control(queue="mail", batch=7))

    assert (7, OWN.weights, OWN.rate) == (found.batch, found.weights, found.rate)


def test_a_tenants_own_rate_leaves_the_others() -> None:
    found = controlled(OWN, Control(queue="mail", rates={"acme": "10/min", "trial": "5/s"}))

    assert [parse_rate(rate) for rate in ("10/min", "5/s", "100/s")] == [
        found.rate_of(tenant) for tenant in ("acme", "trial", "somebody else")
    ]
    assert 3 == found.batch


def test_a_rate_for_a_consumer_that_has_none() -> None:
    found = controlled(Fair(), Control(queue="mail", rates={"acme": "10/min"}))

    assert (parse_rate("10/min"), None) == (found.rate_of("acme"), found.rate_of("bolt"))


def test_changes_add_up_until_they_are_taken_back() -> None:
    first = merged(Control(queue="mail"), batch=5, rates={"acme": "1/s"})

    second = merged(first, batch=None, rates={"bolt": "2/s"})

    assert (5, {"acme": "1/s", "bolt": "2/s"}) == (second.batch, second.rates)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"batch": 0}, "batch limit is 0"),
        ({"batch": 100_000}, "batch limit is 100000"),
        ({"rates": {"acme": "fast"}}, 'rate of tenant "acme"'),
        ({"rates": {f"t{n}": "1/s" for n in range(1_001)}}, "too many"),
        (
            {"quarantined": [Quarantine(kind=Kind.KEY, name=f"k{n}") for n in range(MAX_QUARANTINED + 1)]},
            "1001 tenants",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Control(queue="mail", **given)


def test_a_control_is_text_and_comes_back() -> None:
    given = Control(queue="mail", batch=5, rates={"acme": "10/min"}, changed_at=7, actor="ann", note="why")

    assert given == control_from_json(control_json(given))


@pytest.mark.parametrize("text", ["", "x", "[]", "1", "{}", '{"schema": 1}', '{"schema": "1"}', b"\xff"])
def test_what_is_no_control_is_refused(text: str | bytes) -> None:
    with pytest.raises(ConfigurationError):
        control_from_json(text)


def test_a_control_of_a_newer_redrive_is_refused() -> None:
    newer = control_json(Control(queue="mail", batch=5)).replace('"schema": 1', '"schema": 3')

    with pytest.raises(SchemaTooNewError):
        control_from_json(newer)


ACME = Quarantine(kind=Kind.TENANT, name="acme", at=1, actor="ann", note="poison files")
KEY = Quarantine(kind=Kind.KEY, name="order:7", until=100)
HELD = Control(queue="mail", paused=Pause(at=1, actor="ann", note="down"), quarantined=(ACME, KEY))


def mail(**fields: object) -> Message:
    return Message(id="m", body=b"{}", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "x" * 1_001])
def test_a_name_that_is_none_is_not_set_aside(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be set aside"):
        Quarantine(kind=Kind.TENANT, name=name)


def test_what_holds_queues_comes_back_and_an_older_redrive_refuses_it() -> None:
    assert control_from_json(control_json(HELD)) == HELD
    assert '"schema": 2' in control_json(HELD)
    assert '"schema": 1' in control_json(Control(queue="mail", batch=5)), "an older one may read and change limits"


def test_fields_of_a_newer_neighbour_are_passed_over() -> None:
    newer = control_json(HELD).replace('"kind": "key"', '"kind": "key", "colour": "red"')

    assert control_from_json(newer) == HELD


def test_a_pause_or_a_quarantine_alone_changes_no_turns_and_is_not_nothing() -> None:
    assert not HELD.is_empty
    assert controlled(OWN, HELD) is OWN
    assert not Control(queue="mail", quarantined=(KEY,)).is_empty


def test_limits_are_taken_back_alone() -> None:
    assert without_limits(merged(HELD, batch=5, rates={"acme": "1/s"})) == HELD


def test_messages_of_the_tenant_or_the_key_are_set_aside_and_no_others() -> None:
    asides = Asides(HELD)

    of_tenant = asides.reason(mail(tenant="acme"), now=50)
    of_key = asides.reason(mail(key="order:7"), now=50)

    assert of_tenant is not None
    assert of_key is not None
    assert (QUARANTINED, 'The tenant "acme" is set aside by ann: poison files. Not handled.') == (
        of_tenant.code,
        of_tenant.text,
    )
    assert 'key "order:7"' in of_key.text
    for other in (mail(), mail(tenant="Acme"), mail(key="order:8", tenant="bolt"), mail(tenant="order:7", key="acme")):
        assert asides.reason(other, now=50) is None
    assert asides.reason(mail(key="order:7"), now=100) is None, "its time is over"
    assert asides.reason(mail(tenant="acme", headers={HEADER_LETTER: "dl_1"}), now=50) is None, "a person sent it"
    assert Asides(None).reason(mail(tenant="acme"), now=50) is None


def test_names_are_added_renewed_and_released_and_those_that_are_over_go() -> None:
    longer = Quarantine(kind=Kind.TENANT, name="acme", until=900)

    renewed = with_quarantined(HELD, [longer], now=100)
    left = released(HELD, [(Kind.TENANT, "acme"), (Kind.KEY, "acme")], now=50)

    assert (longer,) == renewed.quarantined
    assert (KEY,) == left.quarantined
    assert HELD.paused == left.paused == renewed.paused
