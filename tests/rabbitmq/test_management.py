"""The management API as a user who is no administrator reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from redrive.brokers.rabbitmq.management import (
    PAGE_SIZE,
    Management,
    ManagementRefusedError,
    ManagementUnavailableError,
    management_url,
)
from redrive.brokers.rabbitmq.probing import Refusal, read_refusal
from redrive.core.topology.model import Binding, Policy
from redrive.errors import ConfigurationError
from tests.rabbit import Rabbit
from tests.rabbitmq.by_hand import Hands

Result = TypeVar("Result")


def client(rabbit: Rabbit) -> Management:
    return Management(rabbit.management_url, login=("nobody", "nothing"))


def asked(awaited: Awaitable[Result]) -> Result:
    async def run() -> Result:
        return await awaited

    return asyncio.run(run())


def test_definitions_hold_what_is_there_and_nothing_of_other_virtual_hosts(rabbit: Rabbit, hands: Hands) -> None:
    with rabbit.server.vhost() as other:
        rabbit.server.api("PUT", f"/api/queues/{other.name}/elsewhere", {"durable": True})
        hands.queue("orders", {"x-queue-type": "quorum", "x-delivery-limit": 7})
        hands.channel.queue_declare("mine", exclusive=True)
        hands.channel.exchange_declare("shop", "headers", durable=True)
        matched = {"x-match": "all", "tenant": "t1", "n": 5, "flag": True}
        hands.channel.queue_bind("orders", "shop", "", matched)
        asked(client(rabbit).put_policy(_policy(rabbit)))
        found = asked(client(rabbit).definitions(rabbit.vhost.name)).topology

    assert ["orders"] == [queue.name for queue in found.queues]
    assert 7 == found.queues[0].arguments["x-delivery-limit"]
    assert "shop" in {exchange.name for exchange in found.exchanges}
    assert (Binding(source="shop", destination="orders", arguments=matched, vhost=rabbit.vhost.name),) == found.bindings
    assert (_policy(rabbit),) == found.policies
    assert rabbit.version == found.version


def _policy(rabbit: Rabbit) -> Policy:
    return Policy(
        name="limit/µ", pattern="^orders$", definition={"max-length": 9}, apply_to="queues", vhost=rabbit.vhost.name
    )


def test_a_list_is_read_to_its_last_page(rabbit: Rabbit, hands: Hands) -> None:
    for number in range(PAGE_SIZE + 10):
        hands.channel.exchange_declare(f"e{number}", "fanout")

    found = asked(client(rabbit).definitions(rabbit.vhost.name)).topology

    assert PAGE_SIZE + 10 == sum(exchange.name.startswith("e") for exchange in found.exchanges)


def test_feature_flags_are_read_or_not_known(rabbit: Rabbit) -> None:
    found = asked(client(rabbit).feature_flags())

    assert found is None or "quorum_queue" in found


def test_a_refused_user_is_told_what_is_missing_and_no_password_is_shown(rabbit: Rabbit) -> None:
    wrong = Management(f"http://{rabbit.vhost.host}:{rabbit.vhost.management_port}", login=("nobody", "s3cret"))

    with pytest.raises(ManagementRefusedError, match="set_user_tags nobody management") as refused:
        asked(wrong.version())

    assert "s3cret" not in f"{refused.value!r} {refused.value} {wrong!r}"


def test_a_plugin_that_is_not_there_is_said_so() -> None:
    nobody = Management("http://127.0.0.1:1", login=("guest", "guest"))

    with pytest.raises(ManagementUnavailableError, match="rabbitmq-plugins enable rabbitmq_management"):
        asked(nobody.version())


def test_the_usual_place_is_ten_thousand_ports_above() -> None:
    assert "http://rabbit:15672" == management_url("rabbit", 5672)
    assert "https://rabbit:15671" == management_url("rabbit", 5671, is_tls=True)
    assert "http://[::1]:15999" == management_url("::1", 5999)
    assert "http://rabbit:15672" == management_url("rabbit", 60_000)


def test_a_url_that_is_none_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigurationError, match="no HTTP URL") as refused:
        Management("amqp://user:s3cret@rabbit", login=("guest", "guest"))

    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("received '2000' but current is '1000'", Refusal(name="x", current=1000)),
        ("received none but current is the value 'a' of type 'longstr'", Refusal(name="x", current="a")),
        ("received none but current is the value '12' of type 'longstr'", Refusal(name="x", current="12")),
        ("received the value '1' of type 'signedint' but current is none", Refusal(name="x", current=None)),
        ("received 'true' but current is 'false'", Refusal(name="x", current=False)),
        ("received the value 'it''s' of type 'longstr' but current is none", Refusal(name="x", current=None)),
    ],
)
def test_a_refusal_tells_what_is_there(text: str, said: Refusal) -> None:
    whole = f"PRECONDITION_FAILED - inequivalent arg 'x' for queue 'pf' in vhost '/': {text}"

    assert said == read_refusal(whole)


def test_other_words_of_the_broker_tell_nothing() -> None:
    assert read_refusal("PRECONDITION_FAILED - unknown delivery tag 7") is None
