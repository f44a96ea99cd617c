"""Probes and the server around an app, over HTTP in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.errors import BrokerUnavailableError, ConfigurationError, SchemaTooNewError
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.clock import FakeClock
from redrive.testing.samples import QUEUE
from redrive.web import HttpServer, Probes, compose, probes_app
from redrive.web.probes import LETTERS_EVERY_MS
from redrive.web.readiness import REFUSAL_HOLDS_MS, Readiness
from tests.service.conftest import put_letters


class Counting:
    """A part of a backend that counts how often it is asked, and can be away."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.calls = 0
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in ("depths", "stats", "list"):
            return found

        async def ask(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.error is not None:
                raise self.error
            return await found(*given, **named)

        return ask


@pytest_asyncio.fixture
async def client(app: Redrive) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(probes_app(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as found:
        yield found


def sample(body: str, series: str) -> float:
    return float(next(line for line in body.splitlines() if line.startswith(f"{series} ")).rpartition(" ")[2])


async def test_metrics_show_what_lies_in_the_queues(app: Redrive, client: httpx.AsyncClient, clock: FakeClock) -> None:
    """Case MA-03: the age grows although nothing happens."""
    await put_letters(app, 3)
    await app.publish(QUEUE, {"n": 1})
    await app.publish(QUEUE, {"n": 2}, delay="1h")

    first = (await client.get("/metrics")).text
    await clock.advance(90 * 60_000)
    later = (await client.get("/metrics")).text

    assert 1 == sample(first, 'redrive_queue_depth{queue="orders",state="ready"}')
    assert 1 == sample(first, 'redrive_queue_depth{queue="orders",state="scheduled"}')
    assert 3 == sample(first, "redrive_dlq_size")
    assert 3 == sample(first, 'redrive_dlq_by_error_code{code="TIMEOUT_EXHAUSTED"}')
    assert 5_400 == pytest.approx(
        sample(later, "redrive_dlq_oldest_age_seconds") - sample(first, "redrive_dlq_oldest_age_seconds")
    )


async def test_the_settings_prefix_is_that_of_every_name(url: str) -> None:
    app = Redrive("shop", url, settings={"metrics_prefix": ""})
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(probes_app(app)), base_url="http://shop") as client:
        shown = (await client.get("/metrics")).text

    assert (
        0 == sample(shown, "dlq_size") == sample(shown, "dlq_entries_total") == sample(shown, "dlq_age_seconds_count")
    )
    assert "redrive_" not in shown


@pytest.mark.parametrize("prefix", ["1x", "a b", "a-b", "ä"])
def test_a_prefix_no_metric_can_have_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="metrics_prefix"):
        Redrive("shop", "memory://", settings={"metrics_prefix": prefix})


async def test_only_open_letters_count_as_waiting(app: Redrive, client: httpx.AsyncClient) -> None:
    ids = await put_letters(app, 3)
    await Service(app).review(Selection(ids=tuple(ids[:2])), ReviewState.CLOSED, actor="ann")

    assert 1 == sample((await client.get("/metrics")).text, "redrive_dlq_size")


async def test_many_scrapes_read_the_store_once(app: Redrive, clock: FakeClock) -> None:
    letters = Counting(app.backend.letters)
    app._backend = replace(app.backend, letters=letters)
    probes = Probes(app)

    for _ in range(50):
        await probes.refresh()
    await clock.advance(LETTERS_EVERY_MS)
    await probes.refresh()

    assert 2 == letters.calls


async def test_a_store_that_counts_slowly_is_asked_less_often(app: Redrive, clock: FakeClock) -> None:
    """A million letters take seconds to count; scrapes in between show the numbers of before."""
    real = app.backend.letters

    class Slow(Counting):
        def __getattr__(self, name: str) -> Any:
            found = super().__getattr__(name)

            async def ask(*given: Any, **named: Any) -> Any:
                await clock.advance(2_000)
                return await found(*given, **named)

            return ask if name == "stats" else found

    letters = Slow(real)
    app._backend = replace(app.backend, letters=letters)
    probes = Probes(app)

    asked = []
    for _ in range(10):
        await probes.refresh()
        asked.append(letters.calls)
        await clock.advance(LETTERS_EVERY_MS)

    assert [1] * 8 + [2] == asked[:9]


async def test_a_store_that_is_away_leaves_the_last_numbers(app: Redrive, clock: FakeClock) -> None:
    await put_letters(app, 3)
    letters = Counting(app.backend.letters)
    app._backend = replace(app.backend, letters=letters)
    probes = Probes(app)
    await probes.refresh()

    letters.error = BrokerUnavailableError("locked")
    await clock.advance(LETTERS_EVERY_MS)
    await probes.refresh()

    shown = probes.metrics.render().decode()
    assert 3 == sample(shown, "redrive_dlq_size")
    assert 1 == sample(shown, "redrive_scrape_errors_total")


async def test_a_healthy_app_is_alive_and_ready(client: httpx.AsyncClient) -> None:
    alive, ready = await client.get("/healthz"), await client.get("/readyz")

    assert (200, True) == (alive.status_code, alive.json()["alive"])
    assert (200, {"ready": True, "app": "shop", "reasons": [], "paused": []}) == (ready.status_code, ready.json())


async def test_an_app_that_is_not_open_is_alive_and_not_ready() -> None:
    transport = httpx.ASGITransport(probes_app(Redrive("shop", "memory://")))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        alive, ready, metrics = [await client.get(path) for path in ("/healthz", "/readyz", "/metrics")]

    assert (200, 503, 200) == (alive.status_code, ready.status_code, metrics.status_code)
    assert "starting" == ready.json()["reasons"][0]["code"]


async def test_a_paused_consumer_is_a_reason_until_it_resumes(app: Redrive, client: httpx.AsyncClient) -> None:
    app.events.emit("consumer.paused", queue=QUEUE, error_code="broker_unavailable", error_text="locked", delay_ms=1)
    paused = await client.get("/readyz")
    app.events.emit("consumer.resumed", queue=QUEUE)
    resumed = await client.get("/readyz")

    assert (503, 200) == (paused.status_code, resumed.status_code)
    assert [("consumer_paused", QUEUE)] == [(r["code"], r["queue"]) for r in paused.json()["reasons"]]


async def test_a_queue_that_a_person_paused_is_shown_and_keeps_nobody_from_being_ready(
    app: Redrive, client: httpx.AsyncClient
) -> None:
    app.events.emit("queue.paused", queue=QUEUE, actor="ann", note="")
    paused = await client.get("/readyz")
    metrics = await client.get("/metrics")
    app.events.emit("queue.resumed", queue=QUEUE)
    resumed = await client.get("/readyz")

    assert (200, [QUEUE]) == (paused.status_code, paused.json()["paused"])
    assert f'redrive_queue_paused{{queue="{QUEUE}"}} 1' in metrics.text
    assert [] == resumed.json()["paused"]


async def test_a_webhook_the_broker_did_not_take_is_a_reason_for_a_while(app: Redrive, clock: FakeClock) -> None:
    readiness = Readiness(app)
    refused = {"source": "courier-x", "status": 503, "error_code": "broker_unavailable", "trace_id": None}

    app.events.emit("ingest.refused", **refused)
    refusing = await readiness.obstacles()
    await clock.advance(REFUSAL_HOLDS_MS)
    later = await readiness.obstacles()
    app.events.emit("ingest.refused", **refused)
    await app.publish(QUEUE, {})
    taken = await readiness.obstacles()

    assert (["broker_unavailable"], (), ()) == ([each.code for each in refusing], later, taken)


async def test_a_webhook_that_is_wrong_is_no_reason(app: Redrive) -> None:
    readiness = Readiness(app)

    app.events.emit("ingest.refused", source=None, status=401, error_code="signature_mismatch", trace_id=None)

    assert () == await readiness.obstacles()


async def test_a_draining_worker_is_a_reason(app: Redrive, client: httpx.AsyncClient) -> None:
    app.events.emit("worker.draining", worker="w1", in_hand=1, grace_ms=1)

    assert "draining" == (await client.get("/readyz")).json()["reasons"][0]["code"]


@pytest.mark.parametrize("error", [BrokerUnavailableError("locked"), SchemaTooNewError("schema 9")])
async def test_a_store_that_cannot_be_read_is_a_reason(app: Redrive, clock: FakeClock, error: Exception) -> None:
    jobs = Counting(app.backend.jobs)
    app._backend = replace(app.backend, jobs=jobs)
    readiness = Probes(app).readiness

    before = await readiness.obstacles()
    jobs.error = error
    await clock.advance(2_000)
    during = await readiness.obstacles()
    jobs.error = None
    await clock.advance(2_000)
    after = await readiness.obstacles()

    assert ((), ()) == (before, after)
    assert [error.code] == [obstacle.code for obstacle in during]


# ------------------------------------------------------------------------------------------------- served


def hello(text: str) -> Starlette:
    return Starlette(routes=[Route("/", lambda _: PlainTextResponse(text))])


async def test_mounts_are_served_beside_the_probes_and_the_app_is_opened() -> None:
    app = Redrive("shop", "memory://")
    app.mount("/a", hello("short"))
    app.mount("/a/b", hello("long"))

    async with HttpServer(compose(app)) as server, httpx.AsyncClient(base_url=server.url) as client:
        was_open = app.is_open
        texts = [(await client.get(path)).text for path in ("/a/", "/a/b/")]
        ready = (await client.get("/readyz")).status_code

    assert (True, False) == (was_open, app.is_open)
    assert (["short", "long"], 200) == (texts, ready)


async def test_a_stopping_server_finishes_what_it_has_in_hand() -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        is_asked.set()
        await may_answer.wait()
        await PlainTextResponse("done")(scope, receive, send)

    server = HttpServer(slow)
    await server.start()
    async with httpx.AsyncClient(base_url=server.url) as client:
        asking = asyncio.create_task(client.get("/"))
        await is_asked.wait()
        stopping = asyncio.create_task(server.stop())
        may_answer.set()
        answer = await asking
        await stopping

    assert "done" == answer.text


async def test_two_servers_cannot_have_one_port() -> None:
    async with HttpServer(hello("x")) as server:
        with pytest.raises(ConfigurationError, match=str(server.port)):
            await HttpServer(hello("y"), port=server.port).start()


async def test_an_open_that_fails_is_the_reason(app: Redrive) -> None:
    closed = Redrive("shop", "memory://")
    probes = Probes(closed)
    probes.readiness.failed_to_open = BrokerUnavailableError("The file is locked.")

    transport = httpx.ASGITransport(probes_app(closed, probes))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        (reason,) = json.loads((await client.get("/readyz")).text)["reasons"]

    assert ("broker_unavailable", "The file is locked.") == (reason["code"], reason["text"])
