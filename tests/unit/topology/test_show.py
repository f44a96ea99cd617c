"""A topology as a table and as a picture: whatever the names, valid Mermaid."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.topology.model import Binding, Exchange, Queue, Topology
from redrive.core.topology.recipes import delay_levels, fanout_bus, retry_per_queue, tiered_retry
from redrive.core.topology.show import LADDER, Row, escaped, in_words, mermaid, rows
from redrive.core.topology.wiring import DeadLetterRoute, LadderRetry, Wiring

LABEL = r'"(?:[\w ._\-:,/*]|#\d+;|<br/>)*"'
NODE = re.compile(rf"  (?:e\d+\{{\{{{LABEL}\}}\}}|q\d+\[\({LABEL}\)\])")
ARROW = re.compile(rf"  ([eq]\d+) (?:-->|-\.->|==>)(?:\|{LABEL}\|)? ([eq]\d+)")


def check(text: str) -> list[str]:
    """Every line is a node or an arrow between nodes drawn before; the lines."""
    head, *lines = text.splitlines()
    assert "flowchart LR" == head
    nodes = {re.match(r"  ([eq]\d+)", line)[1] for line in lines if NODE.fullmatch(line)}  # type: ignore[index]
    for line in lines:
        arrow = ARROW.fullmatch(line)
        assert NODE.fullmatch(line) or arrow, line
        assert arrow is None or {arrow[1], arrow[2]} <= nodes
    assert len(nodes) == sum(1 for line in lines if NODE.fullmatch(line))
    return lines


@pytest.mark.parametrize(
    "topology",
    [
        fanout_bus("wms-cincout"), tiered_retry("freeflow", domains=["user"], safe=True),
        retry_per_queue({"q.a": {"domain.events": "#"}}), delay_levels("orders"), Topology(),
    ],
)  # fmt: skip
def test_every_recipe_is_a_valid_picture(topology: Topology) -> None:
    check(mermaid(topology))


def test_the_way_of_a_retry_can_be_followed_in_the_picture() -> None:
    text = mermaid(fanout_bus("wms-a"))

    assert text == (
        "flowchart LR\n"
        '  e0{{"wms.main-exchange<br/>fanout"}}\n'
        '  e1{{"wms.retry-exchange.wms-a<br/>direct"}}\n'
        '  q2[("wms.dlq.wms-a<br/>classic")]\n'
        '  q3[("wms.queue.wms-a<br/>classic")]\n'
        '  q4[("wms.retry-queue.wms-a<br/>classic")]\n'
        "  e0 --> q3\n"
        '  e1 -->|"retry"| q4\n'
        '  q3 -.->|"rejected, retry"| e1\n'
        '  q4 -.->|"after 5s"| q3\n'
        '  q3 ==>|"given up"| q2\n'
    )


def test_the_ladder_is_one_node_and_one_row() -> None:
    made = delay_levels("orders")

    assert len(check(mermaid(made))) < 10
    found = [row for row in rows(made) if row.name == LADDER]
    assert ["351 levels, 100ms to 7d"] == [row.settings for row in found]
    assert 4 == len(rows(made))


def test_what_a_message_goes_to_and_is_not_there_is_drawn_as_such() -> None:
    made = Topology(queues=(Queue(name="q", arguments={"x-dead-letter-exchange": "nope"}),))

    assert '  e1{{"nope<br/>not in the topology"}}' in check(mermaid(made))


def test_rows_tell_where_messages_go() -> None:
    found = {row.name: row for row in rows(tiered_retry("f", domains=["user"], tiers=["90s"]))}

    assert "f.user.retry.90s [user.90s]" == found["f.events.retry"].to
    assert "after 90s: f.events [user.retry]" == found["f.user.retry.90s"].to
    consumers = [row for row in rows(tiered_retry("f", domains=["user"], tiers=["90s"])) if row.kind == "consumer"]
    expected = Row(
        kind="consumer",
        name="f.user",
        what="retry after 90s, by publish",
        to="f.events.dlq (dead letters, rejected)",
    )
    assert [expected] == consumers


def test_rows_and_pictures_are_the_same_in_whatever_order_a_topology_comes() -> None:
    made = retry_per_queue({"q.a": {"e": ["x.#", "y.#"]}, "q.b": {"e": "#"}})
    mixed = Topology(
        exchanges=made.exchanges[::-1],
        queues=made.queues[::-1],
        bindings=made.bindings[::-1],
        wirings=made.wirings[::-1],
    )

    assert mermaid(made) == mermaid(mixed)
    assert rows(made) == rows(mixed)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ('a"b', "a#34;b"), ("#", "#35;"), ("x;y", "x#59;y"), ("<b>", "#60;b#62;"), ("a`b", "a#96;b"),
        ("naïve-Ω", "naïve-Ω"),
        ("a\nb", "a#10;b"), ("{x}", "#123;x#125;"), ("end", "end"), ("a b", "a b"), ("😀", "#128512;"),
    ],
)  # fmt: skip
def test_what_mermaid_could_take_for_its_own_is_written_as_a_code(name: str, expected: str) -> None:
    assert expected == escaped(name)


NAMES = st.text(min_size=1, max_size=12)


@given(NAMES, NAMES, NAMES, NAMES)
def test_any_names_give_a_valid_picture(exchange: str, queue: str, key: str, other: str) -> None:
    made = Topology(
        exchanges=(Exchange(name=exchange, type="topic", arguments={"alternate-exchange": other}),),
        queues=(Queue(name=queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": key}),),
        bindings=(Binding(source=exchange, destination=queue, routing_key=key, arguments={key: [other, True]}),),
        wirings=(
            Wiring(
                queue=queue,
                retry=LadderRetry(),
                dead_letter=DeadLetterRoute(exchange=other, routing_key=key),
                dead_letter_queue=other,
            ),
        ),
    )

    check(mermaid(made))
    assert rows(made)


@pytest.mark.parametrize(
    ("delay_ms", "expected"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (1_500, "1500ms"),
        (90_000, "90s"),
        (120_000, "2m"),
        (604_800_000, "7d"),
        (3_600_000, "1h"),
    ],
)
def test_a_delay_is_written_as_people_write_it(delay_ms: int, expected: str) -> None:
    assert expected == in_words(delay_ms)
