"""Several processes counted as one: files that are written whole, and processes that are gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.runtime.events import Events
from redrive.runtime.metrics import Metrics
from redrive.runtime.tallies import TallyReader, TallyWriter
from tests.service.test_metrics import scrape


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


def test_a_file_that_is_not_one_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text("{")

    assert [] == TallyReader(tmp_path).reports()
