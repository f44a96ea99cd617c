"""Keys and headers of a message."""

from __future__ import annotations

import pytest

from redrive.core.message import (
    Headers,
    Message,
    idempotency_key,
    is_broker_header,
    user_headers,
    whole_number,
    without_own,
)


@pytest.mark.parametrize(
    ("key", "message_id", "expected"),
    [
        ("k", "m", "k"),
        (None, "m", "m"),
        ("", "m", "m"),
        ("  ", "m", "m"),
        (None, None, None),
        ("", "   ", None),
        (None, "None", "None"),
    ],
)
def test_a_blank_key_counts_as_absent(key: str | None, message_id: str | None, expected: str | None) -> None:
    assert expected == idempotency_key(key, message_id)


def test_the_original_body_is_what_the_producer_sent() -> None:
    untouched = Message(id="m", body=b"1")
    rewritten = Message(id="m", body=b"2", original=b"1")

    assert (b"1", b"1") == (untouched.original_body, rewritten.original_body)


@pytest.mark.parametrize(
    "name",
    ["x-death", "X-Death", "x-first-death-queue", "x-first-death-reason", "x-last-death-exchange", "x-delivery-count",
     "x-acquired-count"],
)  # fmt: skip
def test_a_brokers_own_header_is_known(name: str) -> None:
    assert is_broker_header(name)


@pytest.mark.parametrize("name", ["x-tenant", "x-deaths", "x-delivery", "tenant", "x-redriven-at", "x-first"])
def test_a_users_header_that_starts_with_x_is_not_the_brokers(name: str) -> None:
    assert not is_broker_header(name)


def test_nobody_publishes_a_header_of_redrives_own() -> None:
    plain: Headers = {"x-tenant": "t", "x-death": []}

    assert plain is without_own(plain)
    assert plain == without_own({**plain, "x-redrive-letter": "dl_1", "X-Redriven-Count": 3})


def test_user_headers_are_neither_the_brokers_nor_redrives() -> None:
    headers: Headers = {
        "x-tenant": "t",
        "x-death": [],
        "x-redriven-at": "now",
        "X-Redrive-Letter": "dl",
        "x-redriver": 1,
    }

    assert {"x-tenant": "t", "x-redriver": 1} == user_headers(headers)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7), ("7", 7), (b"7", 7), (0, 0), (10**30, 10**30), ("0" * 17 + "1", 1),
        (-1, None), (True, None), (1.5, None), (None, None), ("", None), ("-1", None), ("1.0", None), (" 1", None),
        ("\u0661", None), ("\u00b2", None), (b"\xff", None), ("9" * 19, None), ([1], None), ({}, None),
    ],
)  # fmt: skip
def test_a_count_in_a_header_is_a_whole_number_or_its_digits(value: object, number: int | None) -> None:
    assert number == whole_number(value)
