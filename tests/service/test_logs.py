"""Logs: one JSON object a line, in a stable order, with nothing secret and nothing a terminal would obey."""

from __future__ import annotations

import io
import json
import logging
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.runtime import logs
from redrive.runtime.clean import MAX_TEXT_CHARS, is_secret, mask, plain, printable
from redrive.runtime.events import EVENTS, Events, Level

NOW = 1_700_000_000_250


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Broken:
    """A value whose own text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def write(name: str, *, stream: io.StringIO | None = None, level: Level = Level.DEBUG, **fields: Any) -> str:
    """What the log writes for one event."""
    target = io.StringIO() if stream is None else stream
    events = Events()
    logs.start(events, system="shop", stream=target, level=level, now=lambda: NOW)
    events.emit(name, **fields)
    return target.getvalue()


def test_a_line_is_one_json_object_in_a_stable_order() -> None:
    line = write("delivery.lease_lost", message_id="m-1", queue="orders")

    assert (
        '{"timestamp":"2023-11-14T22:13:20.250Z","level":"error","message":"Lease lost, result refused",'
        '"event":"delivery.lease_lost","system":"shop","queue":"orders","message_id":"m-1"}\n'
    ) == line


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_the_message_of_an_event_is_a_constant(name: str) -> None:
    one = json.loads(write(name, **dict.fromkeys(EVENTS[name].fields, "a")))
    two = json.loads(write(name, **dict.fromkeys(EVENTS[name].fields, "b{}%s")))

    assert one["message"] == two["message"] == EVENTS[name].text


def test_events_below_the_level_are_not_written() -> None:
    assert not write("deliveries.taken", level=Level.INFO, queue="orders", count=3)
    assert write("delivery.lease_lost", level=Level.INFO, queue="orders", message_id="m")


def test_secrets_are_masked_by_name_and_inside_texts() -> None:
    line = json.loads(
        write(
            "delivery.dead_lettered",
            error_text="cannot reach amqp://shop:s3cr3t@broker/ with Bearer abcdefghijkl",
            headers={"Authorization": "x", "tenant": "t1", "nested": {"api_key": "k"}},
            password="p",
        )
    )

    assert "cannot reach amqp://***@broker/ with Bearer ***" == line["error_text"]
    assert {"Authorization": "***", "tenant": "t1", "nested": {"api_key": "***"}} == line["headers"]
    assert "***" == line["password"]


def test_the_index_of_a_matching_secret_is_no_secret() -> None:
    """Case WH-02: the log names the key index that matched."""
    assert 1 == json.loads(write("ingest.accepted", secret_index=1))["secret_index"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Broken(), "<unprintable Broken>"),
        ({"in": Broken()}, {"in": "<unprintable Broken>"}),
        (float("nan"), "nan"),
        (b"\x00\xff", "00ff"),
        ("x\ud800y", "x\ufffdy"),
        ({1, 2}, [1, 2]),
        (Level.WARN, "warn"),
    ],
)
def test_a_field_that_json_cannot_hold_is_shown_all_the_same(value: object, shown: object) -> None:
    assert shown == json.loads(write("delivery.requeued", reason_code=value))["reason_code"]


def test_huge_and_deep_fields_are_cut() -> None:
    deep: Any = "x"
    for _ in range(50):
        deep = [deep]

    line = write("delivery.requeued", reason_code="界" * 100_000, queue=deep, tenant=list(range(10_000)))

    assert len(line) < 3 * MAX_TEXT_CHARS


def test_a_stream_that_breaks_raises_nothing() -> None:
    stream = io.StringIO()
    events = Events()
    logs.start(events, system="shop", stream=stream)
    stream.close()

    events.emit("delivery.lease_lost", queue="orders", message_id="m")


def test_a_field_of_the_name_of_a_standard_one_does_not_replace_it() -> None:
    line = json.loads(write("worker.started", level_="x", worker="w", event="forged", message="forged"))

    assert ("worker.started", "Worker started") == (line["event"], line["message"])


def test_a_terminal_gets_text_that_it_does_not_obey() -> None:
    shown = write("delivery.requeued", stream=Terminal(), reason_code="\x1b]0;owned\x07\u202e", queue="orders")

    assert "Delivery handed back" in shown
    assert "\x1b]0;owned" not in shown
    assert "\u202e" not in shown


@given(st.text())
def test_printable_text_holds_no_control_character(text: str) -> None:
    shown = printable(text)

    assert all(unicodedata.category(char)[0] != "C" or char == "\u200d" for char in shown)
    shown.encode()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))  # fmt: skip
def test_any_value_becomes_json(value: object) -> None:
    json.loads(json.dumps(plain(value), allow_nan=False))


@pytest.fixture
def bare_root() -> Iterator[logging.Logger]:
    """The root logger as in a process that set nothing up."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers.clear()
    yield root
    root.handlers[:] = before


def test_what_a_library_logs_comes_out_in_the_same_form(bare_root: logging.Logger) -> None:
    stream = io.StringIO()
    bare_root.handlers.clear()
    logs.take_in_library_logs(system="shop", stream=stream)

    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("some.package").exception("in %s", "amqp://u:p@h/")
    logging.getLogger("x").info("not this")

    (line,) = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert ("error", "library.log", "some.package", "in amqp://***@h/") == (
        line["level"], line["event"], line["logger"], line["text"],
    )  # fmt: skip
    assert "ValueError: boom" in line["traceback"]


def test_an_app_that_set_logging_up_keeps_it(bare_root: logging.Logger) -> None:
    mine = logging.NullHandler()
    bare_root.handlers[:] = [mine]

    logs.take_in_library_logs(system="shop")

    assert [mine] == bare_root.handlers


def test_masking_leaves_plain_urls_alone() -> None:
    assert "https://example.org/a@b" == mask("https://example.org/a@b")
    assert is_secret("X-Signature")
    assert not is_secret("message_id")
