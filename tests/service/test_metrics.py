"""Metrics: the books balance, labels stay bounded, counters never fall."""

from __future__ import annotations

import random
import re
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.runtime.app import Redrive
from redrive.runtime.events import ENDS, EVENTS, Events
from redrive.runtime.labels import OTHER, BoundedNames, TopCounter, label_text
from redrive.runtime.metrics import METRICS, PREFIX, TENANTS_SHOWN, Metrics, Tally
from redrive.testing.clock import FakeClock
from redrive.testing.samples import letter, message
from redrive.web import Probes
from tests.service.conftest import put_letters

SERIES = re.compile(r"^(?P<name>[a-z_:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


def scrape(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Every series of one scrape by name and label text."""
    lines = metrics.render().decode().splitlines()
    found = [SERIES.match(line) for line in lines if line and not line.startswith("#")]
    assert all(found), lines
    return {(match["name"], match["labels"] or ""): float(match["value"]) for match in found if match}


def total(series: dict[tuple[str, str], float], name: str) -> float:
    return sum(value for (found, _), value in series.items() if found == f"{PREFIX}{name}")


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def metrics(events: Events) -> Metrics:
    found = Metrics()
    found.subscribe(events)
    return found


def end(events: Events, name: str, queue: str = "orders", **fields: object) -> None:
    """One delivery ends this way."""
    if name == "deliveries.processed":
        events.emit(name, queue=queue, durations_ms=[3], attempts=[1], tenants=["t"], **fields)
        return
    given_fields = {"attempt": 1, "error_code": "TIMEOUT", "delay_ms": 1_000, "duration_ms": 5, "reason_code": "X"}
    events.emit(name, queue=queue, **{**given_fields, **fields})


@given(ends=st.lists(st.sampled_from(sorted(ENDS)), max_size=60), in_flight=st.integers(0, 9))
def test_every_delivery_is_in_exactly_one_end_counter(ends: list[str], in_flight: int) -> None:
    """Case MA-04: taken = the sum of all ends + in flight."""
    events, metrics = Events(), Metrics()
    metrics.subscribe(events)
    events.emit("deliveries.taken", queue="orders", count=len(ends) + in_flight)

    for name in ends:
        end(events, name)

    series = scrape(metrics)
    assert len(ends) + in_flight == total(series, "deliveries_taken_total")
    assert len(ends) == total(series, "deliveries_total")
    assert in_flight == total(series, "deliveries_in_flight")


def test_every_end_has_its_own_word() -> None:
    assert len(ENDS) == len(set(ENDS.values()))
    assert set(ENDS) <= set(EVENTS)


def test_dead_letters_are_counted_by_queue_and_reason(events: Events, metrics: Metrics) -> None:
    end(events, "delivery.dead_lettered", reason_code="VALIDATION_FAILED")
    end(events, "delivery.dead_lettered", reason_code="EXPIRED", duration_ms=None)

    series = scrape(metrics)

    assert 2 == total(series, "dlq_entries_total")
    assert 1 == series[f"{PREFIX}dead_letters_total", 'queue="orders",reason="EXPIRED"']
    assert 1 == total(series, "handler_duration_seconds_count"), "an expired message ran no handler"


def test_durations_fall_into_their_buckets(events: Events, metrics: Metrics) -> None:
    events.emit(
        "deliveries.processed", queue="q", durations_ms=[0.5, 5, 5.1, 999_999], attempts=[1] * 4, tenants=[None] * 4
    )

    series = scrape(metrics)

    name = f"{PREFIX}handler_duration_seconds"
    assert 1 == series[f"{name}_bucket", 'le="0.001",queue="q"']
    assert 2 == series[f"{name}_bucket", 'le="0.005",queue="q"']
    assert 3 == series[f"{name}_bucket", 'le="0.01",queue="q"']
    assert 3 == series[f"{name}_bucket", 'le="300.0",queue="q"']
    assert 4 == series[f"{name}_bucket", 'le="+Inf",queue="q"']
    assert 4 == series[f"{name}_count", 'queue="q"']


def test_a_worker_that_starts_shows_every_end_of_its_queues_at_once(events: Events, metrics: Metrics) -> None:
    """Else the first dead letters of a worker are in no rate: a series that begins with 5 has not increased."""
    events.emit("worker.started", worker="w", queues=["orders", "refunds"], pid=1)

    series = scrape(metrics)

    for queue in ("orders", "refunds"):
        assert 0 == series[f"{PREFIX}deliveries_in_flight", f'queue="{queue}"']
        for outcome in ENDS.values():
            assert 0 == series[f"{PREFIX}deliveries_total", f'outcome="{outcome}",queue="{queue}"']


def test_a_prefix_of_ones_own_or_none(events: Events) -> None:
    bare, mine = Metrics(prefix=""), Metrics(prefix="mail_")
    for metrics in (bare, mine):
        metrics.subscribe(events)
    end(events, "delivery.retry_scheduled", attempt=1, delay_ms=1_500)

    shown = scrape(bare)

    assert 1 == shown["retry_attempts_total", 'attempt="1"']
    assert 1 == shown["retry_backoff_delay_seconds_bucket", 'le="2.5"']
    assert 1.5 == shown["retry_backoff_delay_seconds_sum", ""]
    assert {f"mail_{name}" for name, _ in shown} == {name for name, _ in scrape(mine)}


EVERY_NAME_OF_SYSTEM_E = {
    "retry_attempts_total", "retry_backoff_delay_seconds_bucket", "retry_success_rate", "dlq_entries_total",
    "dlq_size", "dlq_age_seconds_bucket", "dlq_by_error_code", "dlq_by_company", "dlq_oldest_age_seconds",
}  # fmt: skip


async def test_the_names_of_system_e_are_literal(app: Redrive, clock: FakeClock) -> None:
    """What a team's dashboards ask for, letter by letter, with the prefix and without."""
    await put_letters(app, 3)
    for prefix in ("", "redrive_"):
        probes = Probes(app, Metrics(prefix=prefix))
        end(app.events, "delivery.retry_scheduled", attempt=2)
        app.events.emit("deliveries.processed", queue="q", durations_ms=[1], attempts=[2], tenants=[None])
        await probes.refresh()

        shown = scrape(probes.metrics)

        assert {f"{prefix}{name}" for name in EVERY_NAME_OF_SYSTEM_E} <= {name for name, _ in shown}
        assert 0.5 == shown[f"{prefix}retry_success_rate", 'attempt="2"']
        assert 3 == shown[f"{prefix}dlq_size", ""] == shown[f"{prefix}dlq_age_seconds_count", ""]


async def test_open_letters_are_shown_by_age_and_none_is_left_out(app: Redrive, clock: FakeClock) -> None:
    await put_letters(app, 2)
    await clock.advance(2 * 3_600_000)
    await put_letters(app, 1, first=50)
    await app.backend.letters.put(
        [letter(f"t{n}", died_at=clock.now(), message=message(f"t{n}", tenant=f"tenant-{n}")) for n in range(40)]
    )
    probes = Probes(app)

    await probes.refresh()

    shown = scrape(probes.metrics)
    name = f"{PREFIX}dlq_age_seconds"
    assert 43 == total(shown, "dlq_by_company") == total(shown, "dlq_by_error_code") == total(shown, "dlq_size")
    assert 40 == shown[f"{name}_bucket", 'le="10.0"'] == shown[f"{name}_bucket", 'le="7200.0"']
    assert 43 == shown[f"{name}_bucket", 'le="+Inf"'] == shown[f"{name}_count", ""]
    assert 3 * 7_260 == pytest.approx(shown[f"{name}_sum", ""], abs=1)
    assert TENANTS_SHOWN + 1 == sum(found == f"{PREFIX}dlq_by_company" for found, _ in shown)


def test_messages_that_ended_are_counted_over_an_hour() -> None:
    seconds = [0.0]
    events, metrics = Events(), Metrics(monotonic=lambda: seconds[0])
    metrics.subscribe(events)
    for _ in range(3):
        end(events, "deliveries.processed")
    end(events, "delivery.retry_scheduled")
    seconds[0] = 1_800
    end(events, "delivery.dead_lettered")

    at = {}
    for now in (1_800, 3_601, 5_461):
        seconds[0] = now
        shown = scrape(metrics)
        at[now] = [shown[f"{PREFIX}messages_last_hour", f'outcome="{name}"'] for name in ("processed", "dead_lettered")]

    assert {1_800: [3, 1], 3_601: [0, 1], 5_461: [0, 0]} == at


def test_the_success_rate_of_retries_forgets_after_an_hour() -> None:
    seconds = [0.0]
    events, metrics = Events(), Metrics(monotonic=lambda: seconds[0])
    metrics.subscribe(events)
    for _ in range(3):
        end(events, "delivery.retry_scheduled", attempt=2)
    events.emit("deliveries.processed", queue="orders", durations_ms=[1], attempts=[2], tenants=[None])

    now = scrape(metrics)
    seconds[0] = 3_700
    later = scrape(metrics)

    assert 0.25 == now[f"{PREFIX}retry_success_rate", 'attempt="2"']
    assert (f"{PREFIX}retry_success_rate", 'attempt="2"') not in later


def run_traffic(events: Events, *, seed: int) -> None:
    """20 000 messages of 10 000 tenants, 5 000 error texts, 300 workers, 50 queues, 3 error classes."""
    draw = random.Random(seed)
    for number in range(300):
        events.emit("worker.started", worker=f"host-{seed}-{number}", queues=["q"], pid=number)
    for number in range(20_000):
        queue, tenant = f"q{number % 50}", f"tenant-{draw.randrange(10_000)}"
        events.emit("deliveries.taken", queue=queue, count=1)
        if number % 4:
            events.emit("deliveries.processed", queue=queue, durations_ms=[1], attempts=[1], tenants=[tenant])
            continue
        end(
            events,
            "delivery.dead_lettered",
            queue,
            tenant=tenant,
            message_id=f"7f3c{number}",
            error_text=f"error text {draw.randrange(5_000)}",
            error_code=f"CODE_{number % 3}",
            reason_code=f"REASON_{number % 3}",
        )


def test_labels_stay_bounded_however_many_tenants_and_texts_there_are(events: Events, metrics: Metrics) -> None:
    """Case MA-01."""
    run_traffic(events, seed=1)
    first = scrape(metrics)
    run_traffic(events, seed=1)
    second = scrape(metrics)

    assert len(first) < 5_000
    assert len(second) <= len(first)
    assert 15_000 == total(first, "tenant_jobs_processed")
    assert 30_000 == total(second, "tenant_jobs_processed")
    labels = " ".join(labels for _, labels in second)
    assert not re.search(r"error text|7f3c|host-", labels)


def test_codes_that_a_handler_invents_share_one_label(events: Events, metrics: Metrics) -> None:
    for number in range(1_000):
        end(events, "delivery.dead_lettered", reason_code=f"ORDER_{number}")

    series = scrape(metrics)

    assert 1_000 == total(series, "dead_letters_total")
    assert sum(name == f"{PREFIX}dead_letters_total" for name, _ in series) <= 51


def test_a_stranger_cannot_invent_sources(events: Events, metrics: Metrics) -> None:
    for number in range(1_000):
        events.emit("ingest.refused", source=f"guess-{number}", status=404, error_code="unknown_source", trace_id=None)

    series = scrape(metrics)

    assert 1_000 == series[f"{PREFIX}ingest_requests_total", 'source="-",status="404"']


# ------------------------------------------------------------------------------------------------- top counter


@given(names=st.lists(st.sampled_from([f"t{n}" for n in range(40)]), max_size=400), every=st.integers(1, 50))
def test_the_top_counter_never_loses_a_count_and_no_series_falls(names: list[str], every: int) -> None:
    counter = TopCounter(3)
    before: dict[str, int] = {}

    for place, name in enumerate(names, 1):
        counter.add(name)
        if place % every == 0:
            now = dict(counter.items())
            assert place == sum(now.values())
            assert len(now) <= 4
            assert all(count >= before[label] for label, count in now.items() if label in before)
            before = now


def test_a_tenant_that_becomes_busy_gets_its_own_series() -> None:
    counter = TopCounter(2)
    for name in ("a", "b"):
        counter.add(name)

    counter.add("late", 1_000)
    counter.items()
    counter.add("late", 5)

    assert 5 == dict(counter.items())["late"]


def test_equals_do_not_swap_for_ever() -> None:
    counter = TopCounter(2)
    rounds = []
    for _ in range(50):
        for name in "abcd":
            counter.add(name)
        rounds.append({label for label, _ in counter.items()})

    assert 1 == len({frozenset(labels) for labels in rounds})


def test_a_tenant_called_other_is_not_the_rest() -> None:
    counter = TopCounter(1)
    counter.add(OTHER)
    counter.add("x")

    assert [("other_", 1), (OTHER, 1)] == counter.items()


def test_bounded_names_keep_the_first() -> None:
    names = BoundedNames(2)

    assert ["a", "b", "a", OTHER] == [names("a"), names("b"), names("a"), names("c")]


@given(st.text())
def test_any_name_is_a_label_that_can_be_written(name: str) -> None:
    label = label_text(name)

    assert 1 <= len(label) <= 64
    label.encode()


@pytest.mark.parametrize("tenant", ["", "  ", None])
def test_no_tenant_is_its_own_tenant(tenant: str | None) -> None:
    assert "-" == label_text(tenant)


# ------------------------------------------------------------------------------------------------- many processes


def test_tallies_of_several_processes_add_up(events: Events, metrics: Metrics) -> None:
    end(events, "deliveries.processed")
    events.emit("breaker.changed", queue="orders", state="open", until=None)
    other_events, other = Events(), Metrics()
    other.subscribe(other_events)
    end(other_events, "deliveries.processed")
    other_events.emit("breaker.changed", queue="orders", state="closed", until=None)

    both = Tally()
    both.merge(metrics.tally())
    both.merge(other.tally())

    assert 2 == both.numbers["deliveries"]["orders", "processed"]
    assert 2 == both.numbers["breaker_state"][("orders",)], "an open breaker in one process is open"
    assert 0.006 == pytest.approx(both.histograms["handler_duration_seconds"][("orders",)][-1])


def test_a_process_that_ended_leaves_its_counters_and_none_of_its_states(events: Events, metrics: Metrics) -> None:
    events.emit("deliveries.taken", queue="orders", count=5)
    events.emit("consumer.paused", queue="orders", error_code="x", error_text="x", delay_ms=1)

    left = metrics.tally().counters()

    assert 5 == left.numbers["deliveries_taken"][("orders",)]
    assert {"deliveries_in_flight", "consumer_paused"}.isdisjoint(left.numbers)


def test_every_metric_says_what_it_is() -> None:
    assert all(metric.text.endswith(".") for metric in METRICS.values())
    assert all((metric.kind == "histogram") == bool(metric.buckets) for metric in METRICS.values())


def test_tenants_shown_are_few() -> None:
    assert TENANTS_SHOWN <= 50


def test_an_empty_registry_renders() -> None:
    series = defaultdict(float, scrape(Metrics()))

    assert 0 == series[f"{PREFIX}dlq_entries_total", ""]
