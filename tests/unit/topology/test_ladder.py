"""The delay ladder: never early, hardly late, bounded in number (case TP-08)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from redrive.core.topology.ladder import LEVELS, MAX_LEVEL_MS, PREFIX, has_ladder, is_level, ladder, level_for
from redrive.core.topology.model import EMPTY, Binding, Exchange, Queue
from redrive.core.topology.recipes import delay_levels

DAY_MS = 86_400_000


@given(st.integers(0, MAX_LEVEL_MS))
@example(0)
@example(1)
@example(100)
@example(101)
@example(3_000)
@example(3_001)
@example(MAX_LEVEL_MS - 1)
@example(MAX_LEVEL_MS)
def test_a_delay_is_never_early_and_late_by_at_most_100_ms_or_4_percent(delay_ms: int) -> None:
    level = level_for(delay_ms)

    assert delay_ms <= level.delay_ms <= delay_ms + max(100, 0.04 * delay_ms)


@given(st.floats(0, MAX_LEVEL_MS))
def test_a_part_of_a_millisecond_is_not_early_either(delay_ms: float) -> None:
    assert level_for(delay_ms).delay_ms >= delay_ms


@given(st.integers(0, 10 * MAX_LEVEL_MS), st.integers(0, 10 * MAX_LEVEL_MS))
def test_a_shorter_delay_is_never_in_a_longer_level(one: int, other: int) -> None:
    assert level_for(min(one, other)).delay_ms <= level_for(max(one, other)).delay_ms


def test_the_number_of_levels_is_known_and_each_has_one_ttl_of_its_own() -> None:
    delays = [level.delay_ms for level in LEVELS]

    assert 351 == len(LEVELS)
    assert sorted(set(delays)) == delays


def test_the_delays_people_write_are_levels_themselves() -> None:
    written = [1_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000]
    written += [days * DAY_MS for days in range(1, 8)]

    assert written == [level_for(delay_ms).delay_ms for delay_ms in written]


def test_days_are_one_level_and_what_is_longer_than_the_longest_goes_round() -> None:
    assert 3 * DAY_MS == level_for(3 * DAY_MS).delay_ms
    assert LEVELS[-1] == level_for(7 * DAY_MS) == level_for(7 * DAY_MS + 1) == level_for(400 * DAY_MS)


def test_a_level_keeps_the_routing_key_and_gives_the_message_to_the_queue_of_that_name() -> None:
    level = level_for(5_000)

    declared = ladder()

    assert "redrive.delay.5000" == level.name
    assert Exchange(name=level.name, type="fanout") in declared.exchanges
    assert Binding(source=level.name, destination=level.name) in declared.bindings
    arguments = {
        "x-queue-type": "quorum",
        "x-message-ttl": 5_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    assert Queue(name=level.name, arguments=arguments) in declared.queues


def test_no_level_can_expire_with_messages_inside() -> None:
    declared = ladder()

    assert len(LEVELS) == len(declared.queues) == len(declared.exchanges) == len(declared.bindings)
    assert not [queue.name for queue in declared.queues if "x-expires" in queue.arguments or not queue.durable]


def test_names_of_the_ladder_are_told_from_others() -> None:
    assert is_level(LEVELS[0].name)
    assert not any(map(is_level, (PREFIX, f"{PREFIX}5s", "orders", "100", f"{PREFIX}٣", f"x{PREFIX}100")))


def test_a_topology_knows_whether_it_has_a_ladder() -> None:
    assert has_ladder(delay_levels())
    assert not has_ladder(EMPTY)
