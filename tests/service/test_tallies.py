"""Several processes counted as one: files that are written whole, and processes that are gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.runtime.events import Events
from redrive.runtime.metrics import TENANTS_SHOWN, Metrics
from redrive.runtime.tallies import TallyReader, TallyWriter
from tests.service.test_metrics import scrape, total


@pytest.fixture
def metrics() -> Metrics:
    events, found = Events(), Metrics()
    found.subscribe(events)
    events.emit("deliveries.taken", queue="orders", count=3)
    events.emit("deliveries.processed", queue="orders", durations_ms=[1, 2], attempts=[1, 2], tenants=["a", None])
    return found


def write(directory: Path, metrics: Metrics, obstacles: tuple[str, ...] = ()) -> None:
    writer = TallyWriter(directory, metrics.tally, lambda: obstacles)
    writer.start()
    writer.close()


def as_of(directory: Path, pid: int) -> None:
    """What this process wrote, as if another one had."""
    (mine,) = directory.glob("*.json")
    document = json.loads(mine.read_text())
    mine.unlink()
    (directory / f"{pid}.json").write_text(json.dumps({**document, "pid": pid}))


@pytest.fixture
def gone() -> int:
    """The id of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_what_is_read_is_what_was_written(tmp_path: Path, metrics: Metrics) -> None:
    write(tmp_path, metrics, ("the broker is away",))

    (report,) = TallyReader(tmp_path).reports()

    assert metrics.tally() == report.tally
    assert ("the broker is away",) == report.obstacles
    assert report.age_s < 60


def test_a_live_process_is_added_to_the_scrape(tmp_path: Path, metrics: Metrics) -> None:
    write(tmp_path, metrics)

    series = scrape(Metrics(others=TallyReader(tmp_path).tallies))

    assert 2 == series["redrive_deliveries_total", 'outcome="processed",queue="orders"']
    assert 1 == series["redrive_deliveries_in_flight", 'queue="orders"']
    assert 1 == series["redrive_retry_success_rate", 'attempt="2"']
    assert 2 == series["redrive_handler_duration_seconds_count", 'queue="orders"']


def test_a_process_that_is_gone_keeps_its_counters_in_the_sum(tmp_path: Path, metrics: Metrics, gone: int) -> None:
    write(tmp_path, metrics)
    as_of(tmp_path, gone)
    reader = TallyReader(tmp_path)

    first, second = (scrape(Metrics(others=reader.tallies)) for _ in range(2))

    assert first == second
    assert 2 == first["redrive_deliveries_total", 'outcome="processed",queue="orders"']
    assert ("redrive_deliveries_in_flight", 'queue="orders"') not in first, "what it had in hand is no longer in hand"
    assert [] == list(tmp_path.glob("*.json"))


def test_a_fleet_that_restarts_for_ever_is_as_bounded_as_one_process(tmp_path: Path, gone: int) -> None:
    """Case MA-01: 300 worker processes, each with tenants and codes of its own, come and go."""
    reader = TallyReader(tmp_path)
    shown = Metrics(others=reader.tallies)
    sizes = []

    for restart in range(300):
        write(tmp_path, traffic_of_one_process(restart))
        as_of(tmp_path, gone)
        if restart % 100 == 99:
            sizes.append(len(scrape(shown)))
        else:
            reader.tallies()

    series = scrape(shown)
    assert max(sizes) - min(sizes) <= 20, sizes
    assert len(series) < 1_000
    assert 300 * 30 == total(series, "tenant_jobs_processed")
    assert 300 * 10 == total(series, "dead_letters_total") == total(series, "failures_total")
    assert TENANTS_SHOWN + 1 >= sum(name == "redrive_tenant_jobs_processed" for name, _ in series)


def traffic_of_one_process(number: int) -> Metrics:
    """30 messages of 30 tenants processed, 10 dead with codes a handler made up."""
    events, found = Events(), Metrics()
    found.subscribe(events)
    tenants = [f"tenant-{number * 30 + n}" for n in range(30)]
    events.emit("deliveries.taken", queue="orders", count=40)
    events.emit("deliveries.processed", queue="orders", durations_ms=[1] * 30, attempts=[1] * 30, tenants=tenants)
    for n in range(10):
        code = f"ORDER_{number * 10 + n}"
        events.emit("delivery.dead_lettered", queue="orders", attempt=1, error_code=code, reason_code=code)
    return found


def test_a_busy_tenant_of_one_process_is_shown_in_the_sum(tmp_path: Path, metrics: Metrics) -> None:
    crowd = [traffic_of_one_process(number).tally() for number in range(5)]
    busy, events = Metrics(), Events()
    busy.subscribe(events)
    for _ in range(9):
        events.emit("deliveries.processed", queue="orders", durations_ms=[1], attempts=[1], tenants=["busy"])

    series = scrape(Metrics(others=lambda: [*crowd, busy.tally()]))

    assert 9 == series["redrive_tenant_jobs_processed", 'company="busy"']
    assert 159 == total(series, "tenant_jobs_processed")


def test_a_file_that_is_not_one_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text("{")

    assert [] == TallyReader(tmp_path).reports()
