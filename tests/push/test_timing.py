"""`processAfterDelayMs`: not before the publish time plus that."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.message import Message
from redrive.core.units import MAX_DELAY_MS
from redrive.push import Waiting, process_after_ms
from redrive.push.timing import MAX_SEEN

NAME = "processAfterDelayMs"


def message(body: bytes = b"{}", *, published_at: int = 1_000, identity: str = "m", **headers: Any) -> Message:
    return Message(id=identity, body=body, published_at=published_at, headers=headers)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (message(processAfterDelayMs=500), 500),
        (message(processAfterDelayMs="500"), 500),
        (message(processAfterDelayMs=b"500"), 500),
        (message(b'{"processAfterDelayMs": 700}'), 700),
        (message(b'{"processAfterDelayMs": 700}', processAfterDelayMs=500), 500),
        (message(b'{"processAfterDelayMs": 700}', processAfterDelayMs="soon"), 700),
        (message(processAfterDelayMs=10**17), MAX_DELAY_MS),
        (message(processAfterDelayMs=-1), None),
        (message(processAfterDelayMs=True), None),
        (message(processAfterDelayMs=1.5), None),
        (message(b'{"inner": {"processAfterDelayMs": 700}}'), None),
        (message(b'["processAfterDelayMs"]'), None),
        (message(b'{"processAfterDelayMs": '), None),
        (message(b"\xff processAfterDelayMs"), None),
        (message(b"[" * 100_000 + b"processAfterDelayMs"), None),
        (message(), None),
    ],
)
def test_the_delay_is_read_from_header_or_body(given: Message, expected: int | None) -> None:
    assert expected == process_after_ms(given)


def test_the_wait_counts_from_the_publish_time() -> None:
    waiting, given = Waiting(), message(processAfterDelayMs=5_000)

    assert [5_000, 1, 0, 0] == [waiting.left_ms(given, now) for now in (1_000, 5_999, 6_000, 99_000)]


def test_without_a_publish_time_it_counts_from_when_the_message_was_first_seen() -> None:
    waiting, given = Waiting(), message(processAfterDelayMs=5_000, published_at=0)

    assert [5_000, 3_000, 0] == [waiting.left_ms(given, now) for now in (10_000, 12_000, 15_000)]


def test_what_is_remembered_is_bounded() -> None:
    waiting = Waiting()

    for number in range(MAX_SEEN + 10):
        waiting.left_ms(message(processAfterDelayMs=5, published_at=0, identity=str(number)), 1)

    assert MAX_SEEN == len(waiting._first_seen)


def test_another_name_can_be_given() -> None:
    waiting = Waiting(name="notBefore")

    assert 7 == waiting.left_ms(message(b'{"notBefore": 7}'), 1_000)
    assert 0 == waiting.left_ms(message(processAfterDelayMs=7), 1_000)
