"""What may be looked at, where a dead letter came from, and what its copy carries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.attempts import HEADER_KEEPS, attempt_number
from redrive.core.idempotency import Acquired, ClaimRef
from redrive.core.in_place import (
    Redriven,
    Route,
    Standing,
    attempts_of,
    dead_since,
    look_refusal,
    message_digest,
    moved_headers,
    origin_queue,
    reason_of,
    recovered_route,
    redriven_headers,
    route_to,
    wired_queue,
)
from redrive.core.topology.model import EMPTY, QueueType
from redrive.core.topology.recipes import fanout_bus, retry_per_queue, tiered_retry

DEATHS: list[dict[str, Any]] = [
    {"queue": "q.x.retry", "reason": "expired", "count": 2, "exchange": "retry.q.x", "routing-keys": ["retry"]},
    {"queue": "q.x", "reason": "rejected", "count": 3, "exchange": "events", "routing-keys": ["order.new"]},
]
SENT = Redriven(by="ann", at=1_700_000_000_000, batch="rd_1", item="rd_1-7")

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def standing(kind: QueueType | None, *, limit: int | None = None, is_known: bool = True) -> Standing:
    return Standing(queue="q", depth=1, consumers=0, kind=kind, delivery_limit=limit, is_limit_known=is_known)


@pytest.mark.parametrize(
    ("queue", "may"),
    [
        (standing(QueueType.CLASSIC, is_known=False), True),
        (standing(QueueType.QUORUM), True),
        (standing(QueueType.QUORUM, limit=20), False),
        (standing(QueueType.QUORUM, limit=0), False),
        (standing(QueueType.QUORUM, is_known=False), False),
        (standing(QueueType.STREAM), False),
        (standing(None), False),
    ],
)
def test_a_look_is_refused_where_it_counts_or_may_count(queue: Standing, may: bool) -> None:
    assert may == (look_refusal(queue) is None)


@pytest.mark.parametrize(
    ("headers", "queue"),
    [
        ({"x-redrive-queue": "a", "x-original-queue": "b", "x-death": DEATHS}, "a"),
        ({"x-original-queue": "b", "x-death": DEATHS}, "b"),
        ({"x-death": DEATHS}, "q.x"),
        ({"x-redrive-deaths": DEATHS}, "q.x"),
        ({"x-death": [{"queue": "orders", "reason": "expired"}]}, "orders"),
        ({"x-death": [{"queue": "redrive.delay.100", "reason": "expired"}]}, None),
        ({"x-death": [{"queue": "dead", "reason": "expired"}]}, None),
        ({"x-death": "junk"}, None),
        ({}, None),
    ],
)
def test_a_dead_letter_says_where_it_came_from_as_well_as_it_can(headers: dict[str, Any], queue: str | None) -> None:
    assert queue == origin_queue(headers, own="dead")


def test_the_wiring_wins_where_only_one_queue_has_its_dead_letters_here() -> None:
    bus, tiers = fanout_bus("wms-a", "wms-b"), tiered_retry("flow", domains=["user", "auth"])

    assert "wms.queue.wms-a" == wired_queue({"x-original-queue": "forged"}, "wms.dlq.wms-a", bus)
    assert "flow.auth" == wired_queue(
        {"x-death": [{"queue": "flow.auth", "reason": "rejected"}]}, "flow.events.dlq", tiers
    )


def test_the_way_back_is_straight_but_for_queues_that_are_parked() -> None:
    bus, parked = fanout_bus("wms-a"), retry_per_queue({"q.x": {"events": "#"}})

    assert Route(queue="wms.queue.wms-a", exchange="", routing_key="wms.queue.wms-a") == route_to(
        "wms.queue.wms-a", bus
    )
    assert Route(queue="q.x", exchange="retry.q.x", routing_key="retry") == route_to("q.x", parked)
    assert Route(queue="q.y", exchange="", routing_key="q.y") == route_to("q.y", parked)
    assert Route(queue="q.x", exchange="retry.q.x", routing_key="retry") == recovered_route(
        "q.x", "q.x.dlq", exchanges={"retry.q.x"}, queues={"q.x.retry"}
    )
    assert "" == recovered_route("q.x", "q.x.dlq", exchanges={"retry.q.x"}, queues=set()).exchange


def test_a_copy_carries_the_users_headers_the_letter_and_who_sent_it() -> None:
    headers = {
        "mine": 1, "x-mine": 2, "x-death": DEATHS, "x-delivery-count": 4, "CC": ["a"], "bcc": ["b"],
        "x-redrive-letter": "dl",
        "x-redrive-reason-code": "TIMEOUT", "x-redrive-attempt": 3, "x-redrive-baseline": 2, "x-redrive-tenant": "acme",
        "x-redrive-expires-at": 5, "x-redriven-count": 1, "x-final-error": "boom",
    }  # fmt: skip

    copy = redriven_headers(headers, SENT, queue="q.x")

    assert copy == {
        "mine": 1, "x-mine": 2, "x-redrive-letter": "dl", "x-redrive-tenant": "acme", "x-redrive-exchange": "events",
        "x-redrive-routing-key": "order.new", "x-redriven-at": "2023-11-14T22:13:20.000Z", "x-redriven-by": "ann",
        "x-redriven-count": 2, "x-redriven-batch": "rd_1", "x-redriven-item": "rd_1-7",
    }  # fmt: skip


def test_a_copy_loses_what_its_wiring_wrote_on_the_dead_letter() -> None:
    tiers = tiered_retry("flow", domains=["user"])
    headers = {"x-retry-count": 3, "x-original-routing-key": "user.created", "x-original-exchange": "flow.events"}

    copy = redriven_headers(headers, SENT, queue="flow.user", wiring=tiers.wiring("flow.user"))

    assert {"x-original-routing-key", "x-original-exchange"} == {name for name in copy if name.startswith("x-o")}
    assert "x-retry-count" not in copy


def test_kept_attempts_count_on_whatever_the_record_says() -> None:
    kept = Redriven(by="ann", at=0, batch="b", item="b-1", keeps_attempts=True)
    again = Acquired(ref=ClaimRef(queue="q.x", key="k", token=2), attempts=1, cycle=1)

    copy = redriven_headers({"x-death": DEATHS}, kept, queue="q.x")
    fresh = redriven_headers({"x-death": DEATHS}, SENT, queue="q.x")

    assert (4, True) == (copy["x-redrive-attempt"], copy[HEADER_KEEPS])
    assert 4 == attempt_number(claim=again, starts=None, headers=copy, queue="q.x")
    assert 1 == attempt_number(claim=again, starts=None, headers=fresh, queue="q.x")
    assert 1 == attempt_number(claim=None, starts=None, headers=fresh, queue="q.x")


def test_a_lifetime_is_given_anew_only_on_request() -> None:
    headers = {"x-redrive-published-at": 1_000, "x-redrive-expires-at": 61_000}
    kept = Redriven(by="ann", at=500_000, batch="b", item="b-1", keeps_ttl=True)

    assert 560_000 == redriven_headers(headers, kept, queue="q")["x-redrive-expires-at"]
    assert "x-redrive-expires-at" not in redriven_headers(headers, SENT, queue="q")


def test_a_moved_message_counts_on() -> None:
    headers = {"mine": 1, "x-death": DEATHS, "x-delivery-count": 2, "cc": ["a"], "x-redrive-letter": "dl"}

    assert moved_headers(headers, queue="q.x", item="i-1") == {
        "mine": 1, "x-redrive-letter": "dl", "x-redrive-attempt": 4, "x-redriven-item": "i-1",
        "x-redrive-exchange": "events", "x-redrive-routing-key": "order.new",
    }  # fmt: skip
    assert 9 == moved_headers({**headers, "x-redrive-attempt": 9}, queue="q.x", item="i")["x-redrive-attempt"]


def test_reasons_and_times_are_read_from_whoever_wrote_them() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)

    assert ("TIMEOUT", "too slow") == reason_of(
        {"x-redrive-reason-code": "TIMEOUT", "x-redrive-reason-text": "too slow"}
    )
    assert ("HTTP_503", "") == reason_of({"x-final-status-code": 503})
    assert ("EXPIRED", 'expired in queue "q.x.retry"') == reason_of({"x-death": DEATHS})
    assert 1_767_225_600_000 == dead_since({"x-death": [{"queue": "q", "time": at}]}, 5)
    assert 7 == dead_since({"x-redrive-first-failed-at": 7}, 5)
    assert 5_000 == dead_since({}, 5)


READ = (
    "x-death", "x-redrive-deaths", "x-redrive-queue", "x-redriven-count", "x-redrive-attempts", "x-redrive-attempt",
    "x-final-status-code",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(READ), JUNK))
def test_no_headers_whatever_raise(headers: dict[str, Any]) -> None:
    origin_queue(headers)
    dead_since(headers, headers.get("x-death"))
    reason_of(headers)
    assert attempts_of(headers, queue="q") >= 0
    redriven_headers(headers, SENT, queue="q")
    message_digest({}, headers, b"")


def test_a_digest_tells_messages_apart_and_not_their_deliveries() -> None:
    one = message_digest({"message_id": None}, {"a": {"x": 1, "y": 2}}, b"1")

    assert one == message_digest({}, {"a": {"y": 2, "x": 1}, "x-delivery-count": 3}, b"1")
    assert 5 == len(
        {
            one,
            message_digest({}, {"a": {"x": 1, "y": 2}}, b"2"),
            message_digest({"type": "t"}, {"a": {"x": 1, "y": 2}}, b"1"),
            message_digest({}, {"a": {"x": 1, "y": 3}}, b"1"),
            message_digest({}, {"a": {"x": "1", "y": 2}}, b"1"),
        }
    )


def test_a_topology_that_says_nothing_sends_straight_to_the_queue() -> None:
    assert Route(queue="q", exchange="", routing_key="q") == route_to("q", EMPTY)
