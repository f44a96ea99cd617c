"""What `push_to` checks before anything is consumed, and what a resolver lets through."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from redrive import Redrive
from redrive.errors import ConfigurationError
from redrive.push import push_to
from redrive.push.client import PublicResolver, TargetRefusedError

URL = "https://service.example/orders"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://service.example/"},
        {"url": "http://127.0.0.1/"},
        {"timeout": 0},
        {"timeout": "soon"},
        {"keep_bytes": -1},
        {"keep_bytes": 5_000},
        {"secrets": ["not base64!"]},
        {"secrets": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
        {"secrets": ["whsec_MfKQ"] * 11},
        {"authorization": "a\nb"},
        {"concurrency": 0},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    app = Redrive("shop", broker="memory://")
    arguments = {"url": URL, **wrong}

    with pytest.raises(ConfigurationError) as refused:
        push_to(app, "orders", arguments.pop("url"), **arguments)

    assert "whsec" not in refused.value.text
    assert {} == app.consumers


def test_a_queue_with_a_consumer_gets_no_second_one() -> None:
    app = Redrive("shop", broker="memory://")
    push_to(app, "orders", URL)

    with pytest.raises(ConfigurationError, match="has a consumer already"):
        push_to(app, "orders", URL)


def test_the_consumer_is_an_ordinary_one() -> None:
    app = Redrive("shop", broker="memory://")

    push_to(app, "orders", URL, dead_letter_queue="orders.dlq", rate="100/min", idempotency=False)

    consumer = app.consumers["orders"]
    assert ("orders.dlq", False, 32) == (consumer.dead_letter_queue, consumer.idempotency, consumer.concurrency)


class Fixed(AbstractResolver):
    """Says these addresses, one answer after the other."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self.answers.pop(0)
        ]

    async def close(self) -> None: ...


async def test_only_public_addresses_of_a_name_are_connected_to() -> None:
    resolver = PublicResolver(Fixed(["10.0.0.1", "93.184.215.14", "::1"]))

    found = await resolver.resolve("service.example", 443)

    assert ["93.184.215.14"] == [each["host"] for each in found]


async def test_a_name_that_changes_its_address_is_looked_at_again() -> None:
    resolver = PublicResolver(Fixed(["93.184.215.14"], ["169.254.169.254"]))

    await resolver.resolve("rebound.example", 80)

    with pytest.raises(TargetRefusedError, match="a link-local address"):
        await resolver.resolve("rebound.example", 80)
