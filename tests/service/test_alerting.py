"""Alerts on a real store: what is told, when, and what is not told because nobody could be asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from redrive.alerting import Wanted, Watch, look_document, look_once
from redrive.core.alerts import Group
from redrive.core.doctor import RedisReading
from redrive.core.letters.selection import Selection
from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.runtime.app import Redrive
from redrive.runtime.events import Events
from redrive.runtime.figures import Figures, last_hour_in
from redrive.runtime.metrics import Metrics
from redrive.service import Service
from redrive.testing.clock import FAKE_EPOCH, FakeClock
from redrive.testing.faults import Faults, FaultyLetterStore
from redrive.testing.samples import QUEUE, letter, message
from redrive.web import HttpServer, Probes, probes_app

MINUTE = 60_000
HOUR = 60 * MINUTE
EVERY_LETTER = Wanted(groups=(Group.EVERY_LETTER,))
MB = 1024 * 1024


async def die(app: Redrive, count: int, *, first: int = 0, tenant: str | None = None, **changes: object) -> None:
    """So many letters, dead now."""
    now = app.clock.now()
    await app.backend.letters.put(
        [
            letter(f"dl_{first + n}", died_at=now, message=message(f"m-{first + n}", tenant=tenant), **changes)
            for n in range(count)
        ]
    )


async def test_ma03_alerts_by_growth_and_by_age(app: Redrive, clock: FakeClock) -> None:
    """Case MA-03: evaluated every 30 s over two hours; each alert is told at these times and at no other."""
    started = clock.now()
    watch, service = Watch(app, EVERY_LETTER), Service(app)
    told: list[tuple[float, str, str]] = []
    ages: list[float] = []

    for minute in (half / 2 for half in range(260)):
        if minute == 0:
            await die(app, 1)
        elif minute == 10:
            await die(app, 50, first=1)
        elif minute == 120:
            await service.redrive(Selection(), actor="ann")
        elif minute == 121:
            await die(app, 1, first=99, previous="dl_0", first_failed_at=started)
        look = await watch.look()
        told += [((n.at - started) / MINUTE, n.alert.rule, str(n.alert.state)) for n in look.evaluation.notifications]
        if minute == 90:
            ages = [alert.value for alert in look.firing]
        await clock.advance(30_000)

    assert [5_400] == ages, "it rises although nothing happens"
    assert [
        (0, "NewDeadLetters", "firing"),
        (5.5, "NewDeadLetters", "resolved"),
        (10, "NewDeadLetters", "firing"),
        (15.5, "NewDeadLetters", "resolved"),
        (60, "DeadLettersOld", "firing"),
        (120, "DeadLettersOld", "resolved"),
        (121, "NewDeadLetters", "firing"),
        (126.5, "NewDeadLetters", "resolved"),
    ] == told


async def test_many_letters_and_one_tenants_letters_are_told_with_what_to_do(app: Redrive) -> None:
    await die(app, 50, tenant="acme")
    await die(app, 50, first=50)
    before = await look_once(app)
    await die(app, 1, first=100, tenant="acme")

    found = look_document(await look_once(app))

    assert () == before.firing
    assert [
        ("DeadLettersMany", None, "101 dead letters wait for somebody to decide"),
        ("TenantDeadLetters", "acme", "Tenant acme has 51 dead letters"),
    ] == [(alert["alert"], alert["label"], alert["summary"]) for alert in found["firing"]]
    assert "redrive dlq stats --tenant acme" in found["firing"][1]["action"]
    assert ["DeadLetterRateHigh", "DeadLettersArchived", "ArchiveFails"] == found["unknown"]


async def test_letters_without_a_tenant_have_nobody_to_be_told(app: Redrive) -> None:
    await die(app, 60)

    assert () == (await look_once(app)).firing


async def test_a_timer_tells_each_turn_once(app: Redrive, clock: FakeClock, tmp_path: Path) -> None:
    """Each look is another process; what stood lies in a file."""
    kept = Wanted(groups=(Group.EVERY_LETTER,), state=tmp_path / "alerts.json")
    told = []

    for minute in range(9):
        if minute == 1:
            await die(app, 1)
        look = await Watch(app, kept).look()
        told += [(minute, str(turn.alert.state)) for turn in look.evaluation.notifications]
        await clock.advance(MINUTE)

    assert [(1, "firing"), (7, "resolved")] == told


async def test_what_could_not_be_kept_is_told_by_the_next_look(app: Redrive, clock: FakeClock, tmp_path: Path) -> None:
    """The disk is full: told twice is better than never."""
    folder = tmp_path / "state"
    watch = Watch(app, Wanted(groups=EVERY_LETTER.groups, state=folder / "alerts.json"))
    await die(app, 1)

    with pytest.raises(FileNotFoundError):
        await watch.look()
    folder.mkdir()
    look = await watch.look()

    assert ["NewDeadLetters"] == [turn.alert.rule for turn in look.evaluation.notifications]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 9, "alerts": []}', '{"schema": 1, "alerts": [{}]}'])
async def test_a_file_that_keeps_something_else_is_refused(app: Redrive, tmp_path: Path, text: str) -> None:
    (tmp_path / "alerts.json").write_text(text)

    with pytest.raises(ConfigurationError):
        Watch(app, Wanted(state=tmp_path / "alerts.json"))

    assert text == (tmp_path / "alerts.json").read_text()


@asynccontextmanager
async def served(app: Redrive, probes: Probes) -> AsyncIterator[str]:
    async with HttpServer(probes_app(app, probes)) as server:
        yield f"{server.url}/metrics"


def end(app: Redrive, *, processed: int, dead: int) -> None:
    """So many messages that came to an end."""
    if processed:
        app.events.emit(
            "deliveries.processed",
            queue=QUEUE,
            durations_ms=[1] * processed,
            attempts=[1] * processed,
            tenants=[None] * processed,
        )
    for _ in range(dead):
        app.events.emit("delivery.dead_lettered", queue=QUEUE, attempt=1, reason_code="X", error_code="X")


@pytest.mark.parametrize(
    ("processed", "dead", "fires"), [(49, 1, False), (48, 2, True), (40, 9, False), (490, 10, False)]
)
async def test_the_rate_of_the_last_hour_is_asked_of_a_worker(
    app: Redrive, processed: int, dead: int, fires: bool
) -> None:
    probes = Probes(app)
    end(app, processed=processed, dead=dead)

    async with served(app, probes) as url:
        found = await look_once(app, Wanted(metrics_urls=(url,)))

    assert (["DeadLetterRateHigh"] if fires else []) == [alert.rule for alert in found.firing]
    assert () == found.evaluation.unknown


def test_what_several_workers_say_adds_up() -> None:
    events, metrics = Events(), Metrics()
    metrics.subscribe(events)
    events.emit("deliveries.processed", queue="q", durations_ms=[1] * 30, attempts=[1] * 30, tenants=[None] * 30)
    events.emit("letters.archived", queue="q", count=2, max_letters=1, file="x")
    page = metrics.render().decode()

    assert {"processed": 60, "dead_lettered": 0, "archived": 4, "failed": 0} == last_hour_in(
        [page, page], prefix="redrive_"
    )
    with pytest.raises(ConfigurationError, match="mine_messages_last_hour"):
        last_hour_in([page], prefix="mine_")


@pytest.mark.parametrize("page", ["", "<html>\n<p>not here</p>", "a{b", 'x{y="', "a b c d", "\x00"])
def test_a_page_that_is_no_metrics_is_refused(page: str) -> None:
    with pytest.raises(ConfigurationError, match="has no redrive_messages_last_hour"):
        last_hour_in([page], prefix="redrive_")


async def test_letters_over_the_maximum_are_told(app: Redrive) -> None:
    """At 10 000 entries nothing is dropped silently: an alert is raised."""
    probes = Probes(app)
    app.events.emit("letters.archived", queue="orders.dead", count=120, max_letters=10_000, file="x.jsonl")
    app.events.emit("letters.not_archived", queue="orders.dead", file="x.jsonl", error_text="disk full")

    async with served(app, probes) as url:
        found = look_document(await look_once(app, Wanted(metrics_urls=(url,))))

    assert [("ArchiveFails", 1), ("DeadLettersArchived", 120)] == [
        (alert["alert"], alert["value"]) for alert in found["firing"]
    ]


async def test_a_worker_that_does_not_answer_is_no_all_clear(app: Redrive) -> None:
    with pytest.raises(BrokerUnavailableError, match="does not answer"):
        await look_once(app, Wanted(metrics_urls=("http://127.0.0.1:1/metrics",)))
    with pytest.raises(ConfigurationError, match="no web address"):
        await look_once(app, Wanted(metrics_urls=("file:///etc/passwd",)))


async def test_an_outage_of_the_store_neither_resolves_nor_fires(app: Redrive, clock: FakeClock) -> None:
    faults = Faults()
    app._backend = replace(app.backend, letters=FaultyLetterStore(app.backend.letters, faults=faults))
    await die(app, 101)
    watch = Watch(app)
    first = await watch.look()

    faults.fail_next("letters.stats")
    looks = watch.changes(every_ms=1)
    blind = await anext(looks)
    await looks.aclose()
    again = await watch.look()

    assert isinstance(blind, BrokerUnavailableError)
    assert 1 == len(first.evaluation.notifications)
    assert () == again.evaluation.notifications
    assert 1 == len(again.firing)


# ---------------------------------------------------------------------------------------------------- Redis


def of_server(ooms: Iterator[str]) -> RedisReading:
    info = {"redis_version": "7.0.15", "used_memory": str(92 * MB), "maxmemory": str(100 * MB)}
    return RedisReading(info={**info, "errorstat_OOM": f"count={next(ooms)}"})


async def test_what_a_redis_server_says_becomes_figures(app: Redrive) -> None:
    """OOM errors count for ten minutes; those from before the first look too, for when they came nobody knows."""
    counts = iter(["3", "3", "3", "5", "5", "1"])

    async def server() -> RedisReading:
        return of_server(counts)

    figures = Figures(app.backend.letters, server=server)
    at = [0, 5, 10, 11, 21, 22]
    found = [await figures.read(FAKE_EPOCH + minute * MINUTE) for minute in at]

    assert [3, 3, 0, 2, 0, 1] == [reading["redis_oom_errors"][""] for reading in found]
    assert 0.92 == found[0]["redis_memory_share"][""]


async def test_rules_about_redis_are_left_out_where_there_is_none(app: Redrive, tmp_path: Path) -> None:
    look = await look_once(app, Wanted(groups=tuple(Group)))

    assert ("DeadLetterRateHigh", "DeadLettersArchived", "ArchiveFails") == look.evaluation.unknown
