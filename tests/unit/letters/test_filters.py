"""The filter language: one line of words, read and written alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.filters import MAX_FILTER_CHARS, joined, parse, render
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.units import UnixMs
from redrive.errors import ConfigurationError

NOW: UnixMs = 1_700_000_000_000
HOUR_MS = 3_600_000

LINES = {
    "": Selection(),
    "  ": Selection(),
    "queue:orders": Selection(queue="orders"),
    "QUEUE:orders": Selection(queue="orders"),
    "queue:orders error:TIMEOUT tenant:acme": Selection(queue="orders", error_code="TIMEOUT", tenant="acme"),
    "code:TIMEOUT": Selection(error_code="TIMEOUT"),
    '"a\nb"': Selection(text="a\nb"),
    "since:2h": Selection(since=NOW - 2 * HOUR_MS),
    "until:2023-11-14T22:13:20Z": Selection(until=NOW),
    "since:2023-11-14T23:13:20+01:00": Selection(since=NOW),
    "state:pending state:REVIEWED": Selection(states=frozenset({ReviewState.PENDING, ReviewState.REVIEWED})),
    "id:dl_1 id:dl_2 id:dl_1": Selection(ids=("dl_1", "dl_2")),
    "class:TimeoutError type:order.created message:m-1 key:k:1": Selection(
        error_type="TimeoutError", message_type="order.created", message_id="m-1", key="k:1"
    ),
    "reason:TIMEOUT_EXHAUSTED group:v1-abc": Selection(reason_code="TIMEOUT_EXHAUSTED", fingerprint="v1-abc"),
    'header:x-region=eu header:"x-note=a b" header:x=y=z': Selection(
        headers=(("x-region", "eu"), ("x-note", "a b"), ("x", "y=z"))
    ),
    '"card declined"': Selection(text="card declined"),
    "declined": Selection(text="declined"),
    r'tenant:"acme \"inc\" \\ co"': Selection(tenant='acme "inc" \\ co'),
    '"queue:orders"': Selection(text="queue:orders"),
    "12:30": Selection(text="12:30"),
    "tenant:界": Selection(tenant="界"),
}


@pytest.mark.parametrize("line", list(LINES))
def test_a_line_means_its_selection(line: str) -> None:
    assert LINES[line] == parse(line, now=NOW)


@pytest.mark.parametrize(
    ("line", "place", "says"),
    [
        ("queu:orders", 1, 'Did you mean "queue:"'),
        ("a nothing:x", 3, "Known: queue, state"),
        ("queue:a queue:b", 9, "given twice"),
        ("card declined", 6, "Quote words"),
        ('queue:a "never closed', 9, "not closed"),
        ('queue:a"b"', 1, "not closed"),
        ('queue:""', 1, "has no value"),
        ("tenant:a queue: orders", 10, "has no value"),
        ("code:a error:a", 8, "error: is given twice"),
        ("http://example.com", 1, "Quote what is only searched for"),
        ("state:open", 1, "Known: pending, reviewed, replayed, closed"),
        ("since:yesterday", 1, "no time"),
        ("since:2023-11-14T22:13:20", 1, "no time"),
        ("header:x-region", 1, "header:name=value"),
        ("header:=x", 1, "header:name=value"),
    ],
)
def test_a_line_that_means_nothing_says_where_and_what_is_known(line: str, place: int, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(line, now=NOW)

    assert f"at {place}:" in caught.value.text
    assert says in f"{caught.value.text} {caught.value.hint}"


def test_a_line_has_a_limit() -> None:
    with pytest.raises(ConfigurationError):
        parse("x" * (MAX_FILTER_CHARS + 1), now=NOW)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
names = texts.filter(lambda text: "=" not in text)
maybe = st.none() | texts
times = st.none() | st.integers(1, 4_000_000_000_000)
selections = st.builds(
    Selection,
    ids=st.lists(texts, max_size=3, unique=True).map(tuple),
    queue=maybe,
    states=st.frozensets(st.sampled_from(ReviewState)),
    reason_code=maybe,
    error_type=maybe,
    error_code=maybe,
    fingerprint=maybe,
    tenant=maybe,
    key=maybe,
    message_type=maybe,
    message_id=maybe,
    headers=st.lists(st.tuples(names, texts | st.just("")), max_size=3, unique=True).map(tuple),
    since=times,
    until=times,
    text=maybe,
)


@given(selections)
def test_what_is_written_is_read_as_the_same_selection(selection: Selection) -> None:
    assert selection == parse(render(selection), now=NOW)


@given(st.text(max_size=60))
def test_any_line_is_read_or_refused_in_words(line: str) -> None:
    hint = "none needed"
    try:
        parse(line, now=NOW)
    except ConfigurationError as error:
        hint = error.hint

    assert hint


def test_a_filter_and_options_hold_together() -> None:
    both = joined(Selection(queue="orders", headers=(("a", "1"),)), Selection(tenant="acme", headers=(("b", "2"),)))

    assert Selection(queue="orders", tenant="acme", headers=(("a", "1"), ("b", "2"))) == both
    assert Selection(queue="orders") == joined(Selection(queue="orders"), Selection(queue="orders"))


def test_a_filter_and_options_that_differ_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="queue: is given twice"):
        joined(Selection(queue="orders"), Selection(queue="billing"))
