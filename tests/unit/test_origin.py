"""Where a message was first published to."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.message import Message, Properties
from redrive.core.origin import origin_of
from redrive.core.topology.wiring import DeadLetterRoute, Tier, TierRetry, Wiring

TIERED = Wiring(
    queue="freeflow.user",
    retry=TierRetry(
        exchange="freeflow.events.retry",
        tiers=(Tier(delay_ms=30_000, routing_key="user.30s"),),
        routing_key_header="x-original-routing-key",
        exchange_header="x-original-exchange",
    ),
    dead_letter=DeadLetterRoute(exchange="", routing_key="freeflow.events.dlq"),
    dead_letter_queue="freeflow.events.dlq",
)
REJECTED = {"queue": "q.audit", "reason": "rejected", "exchange": "domain.events", "routing-keys": ["files.uploaded.1"]}
EXPIRED = {"queue": "q.audit.retry", "reason": "expired", "exchange": "retry.q.audit", "routing-keys": ["retry"]}


def arrived(exchange: str, key: str, **headers: Any) -> Message:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Message(id="m-1", body=b"", headers=named, properties=Properties(exchange=exchange, routing_key=key))


def test_a_first_delivery_tells_it_itself() -> None:
    assert ("domain.events", "files.x") == origin_of(arrived("domain.events", "files.x"), queue="q.audit")
    assert (None, None) == origin_of(Message(id="m-1", body=b""), queue="q.audit")


def test_after_a_tier_the_wirings_headers_tell() -> None:
    back = arrived(
        "freeflow.events", "user.retry", x_original_routing_key="user.created", x_original_exchange="freeflow.events"
    )

    assert ("freeflow.events", "user.created") == origin_of(back, queue="freeflow.user", wiring=TIERED)
    assert ("freeflow.events", "user.retry") == origin_of(back, queue="freeflow.user")


def test_after_a_reject_the_death_in_this_queue_tells() -> None:
    back = arrived("", "q.audit", x_death=[EXPIRED, REJECTED])

    assert ("domain.events", "files.uploaded.1") == origin_of(back, queue="q.audit")


def test_after_the_ladder_our_own_headers_tell() -> None:
    back = arrived("", "q.audit", x_redrive_exchange="domain.events", x_redrive_routing_key="a", x_death=[EXPIRED])

    assert ("domain.events", "a") == origin_of(back, queue="q.audit")


@pytest.mark.parametrize(
    "deaths", ["boom", 7, [], ["x"], [{}], [{**REJECTED, "routing-keys": []}], [{**REJECTED, "exchange": 7}], None]
)
def test_junk_tells_nothing(deaths: Any) -> None:
    assert ("", "q.audit") == origin_of(arrived("", "q.audit", x_death=deaths), queue="q.audit")
