"""Messages, letters and jobs to test with: plain ones, and ones that hold everything that is hard to keep."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from redrive.core.letters.letter import Attempt, AttemptOutcome, Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import HeaderValue, Message, Properties
from redrive.core.ports import Outgoing
from redrive.core.redrive import Job, JobOptions
from redrive.core.settlement import Reason
from redrive.core.units import UnixMs

QUEUE: Final = "orders"

HARD_BODIES: Final[dict[str, bytes]] = {
    "empty": b"",
    "json": b'{"n": 1}',
    "spaces and escapes": b'{ "a" :\t"\\u0041" }\n',
    "NUL in JSON": b'{"s":"a\\u0000b"}',
    "NUL bytes": b"\x00\x00a\x00",
    "not UTF-8": bytes.fromhex("fffe0080"),
    "cut UTF-8": bytes.fromhex("22c32822"),
    "every byte": bytes(range(256)),
    "large": bytes(range(256)) * 1_200,
}
"""Bodies that come back byte for byte."""

HARD_HEADERS: Final[dict[str, HeaderValue]] = {
    "n": None,
    "b": True,
    "no": False,
    "small": -5,
    "zero": 0,
    "big": 9_007_199_254_740_993,
    "f": 1.5,
    "whole": 2.0,
    "dec": Decimal("12.34"),
    "dec-zeros": Decimal("1.500"),
    "t": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    "arr": [1, "a", [2, {"k": b"\x00\xff"}]],
    "raw": b"\x00\x01\xff",
    "tbl": {"x": {"y": []}},
    "none-in": [None, {"n": None}],
    "$bytes": "not a tag",
    "looks-tagged": {"$bytes": "AAE=", "$time": 1, "$$x": {"$decimal": "1"}},
    "note": "x\x00",
    "surrogate": "a\ud800b",
    "words": "naïve-Ω 😀 界",
}
"""Headers of every kind an AMQP table holds, and texts that storage likes to spoil."""

HARD_PROPERTIES: Final = Properties(
    type="order.created.v2",
    correlation_id="c-1",
    reply_to="rpc.r",
    app_id="shop",
    user_id="guest",
    content_encoding="gzip",
    delivery_mode=2,
    timestamp=1_700_000_000,
    expiration="60000",
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    routing_key="order.created",
    exchange="shop",
)
"""Every property set."""

HARD_NAMES: Final[tuple[str, ...]] = (
    "a/b", "a b", "a%2Fb", "q?x=1", "#top", "naïve-Ω", "😀", "x;y", "it's", 'a"b', "A", "a", " padded ", "%", "_",
)  # fmt: skip
"""Queue names and keys that are all different."""


def message(name: str = "m-1", **changes: Any) -> Message:
    """A small message; `name` is its id and its key."""
    given: dict[str, Any] = {
        "id": name, "key": name, "body": b'{"n": 1}', "content_type": "application/json",
        "published_at": 1_700_000_000_000,
    }  # fmt: skip
    return Message(**{**given, **changes})


def hard_message(name: str = "m-hard", **changes: Any) -> Message:
    """A message with everything set: all kinds of headers, all properties, a body that is no text."""
    given: dict[str, Any] = {
        "body": HARD_BODIES["every byte"], "content_type": "application/octet-stream", "tenant": "t1", "priority": 7,
        "expires_at": 1_800_000_000_000, "headers": HARD_HEADERS, "properties": HARD_PROPERTIES,
        "original": HARD_BODIES["not UTF-8"],
    }  # fmt: skip
    return message(name, **{**given, **changes})


def outgoing(name: str = "m-1", *, queue: str = QUEUE, due_at: UnixMs | None = None, **changes: Any) -> Outgoing:
    """One message to publish; the changes are the message's."""
    return Outgoing(queue=queue, message=message(name, **changes), due_at=due_at)


def attempt(number: int = 1, *, at: UnixMs = 1_700_000_000_000, **changes: Any) -> Attempt:
    """One failed attempt of a history."""
    given: dict[str, Any] = {
        "attempt": number, "outcome": AttemptOutcome.FAILED, "at": at, "duration_ms": 12, "error_code": "TIMEOUT",
        "error_type": "TimeoutError", "error_text": "naïve \ufffd 界", "traceback": '  File "x.py"\n', "worker": "w1",
        "next_delay_ms": 1_000,
    }  # fmt: skip
    return Attempt(**{**given, **changes})


def letter(name: str = "dl_1", *, died_at: UnixMs = 1_700_000_000_000, **changes: Any) -> Letter:
    """A pending letter of queue `orders`, dead at `died_at`."""
    given: dict[str, Any] = {
        "id": name, "system": "shop", "queue": QUEUE, "dead_letter_queue": f"{QUEUE}.dead",
        "message": message(f"m-{name}"), "reason": Reason(code="TIMEOUT_EXHAUSTED", text="no answer after 5 attempts"),
        "error_type": "TimeoutError", "error_code": "TIMEOUT", "attempt_count": 1, "history": (attempt(),),
        "fingerprint": "fp-1", "group_title": "TimeoutError: no answer", "first_failed_at": died_at,
        "dead_lettered_at": died_at,
    }  # fmt: skip
    return Letter(**{**given, **changes})


def hard_letter(name: str = "dl_hard", *, died_at: UnixMs = 1_700_000_000_000) -> Letter:
    """A letter with every field set."""
    return letter(
        name,
        died_at=died_at,
        message=hard_message(),
        history=(attempt(1), attempt(2, outcome=AttemptOutcome.INTERRUPTED, duration_ms=None, error_type=None)),
        attempt_count=2,
        state=ReviewState.PENDING,
        first_failed_at=died_at - 86_400_000,
        expires_at=died_at + 90 * 86_400_000,
        redrive_count=2,
        previous="dl_before",
        version="1.4.2",
    )


def job(name: str = "job-1", *, created_at: UnixMs = 1_700_000_100_000, **changes: Any) -> Job:
    """A staged job over everything in `orders`."""
    given: dict[str, Any] = {
        "id": name, "selection": Selection(queue=QUEUE), "options": JobOptions(), "actor": "ann",
        "created_at": created_at, "updated_at": created_at,
    }  # fmt: skip
    return Job(**{**given, **changes})


def kinds(value: object) -> object:
    """The value with its kinds spelled out, so that True differs from 1 and 2 from 2.0 when compared."""
    if isinstance(value, list):
        return ["list", *(kinds(element) for element in value)]
    if hasattr(value, "items"):
        return {name: kinds(element) for name, element in value.items()}
    return (type(value).__name__, str(value) if isinstance(value, Decimal) else value)
