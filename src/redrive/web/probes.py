"""`/metrics`, `/healthz`, `/readyz`, alone or beside what the app mounts.

`/healthz` answers 200 as long as the loop turns (a failing dependency must not restart the process), `/readyz` 503
with the reasons while this process does not do its work, `/metrics` always, with the last known depths when the store
is away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from redrive.core.doctor import memory_of
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.policy.fairness import TenantRecord
from redrive.core.policy.standing import reported
from redrive.core.units import Millis
from redrive.errors import ConfigurationError, RedriveError
from redrive.runtime.adapters import read_server, server_url
from redrive.runtime.app import Redrive
from redrive.runtime.labels import OTHER, label_text
from redrive.runtime.metrics import CODES_SHOWN, QUEUES_SHOWN, TENANTS_SHOWN, Labels, Metrics
from redrive.web.readiness import Readiness, ReadinessCheck

DEPTHS_EVERY_MS: Final[Millis] = 1_000
LETTERS_EVERY_MS: Final[Millis] = 5_000
"""A scrape reads the store no more often than this, however many scrape."""
LETTERS_SHARE: Final = 0.05
"""Counting a million letters takes seconds: no more than this share of the time goes into it."""
SERVER_EVERY_MS: Final[Millis] = 10_000
"""A Redis server is asked for its memory no more often than this: it is a connection each time."""
CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"


TENANTS_READ: Final = 200
"""Tenants of one queue that are looked at, those with the longest backlogs."""

_TENANT_GAUGES: Final[dict[str, tuple[Callable[[float, float], float], Callable[[TenantRecord], float]]]] = {
    "tenant_current_priority": (min, lambda record: record.current_priority),
    "tenant_consecutive_batch": (max, lambda record: record.consecutive_batch_count),
    "tenant_rounds_without_processing": (max, lambda record: record.rounds_without_processing),
}
"""Which of two values is the worse one, and where it comes from. *Source*: system E, Metrics."""


class Probes:
    """The metrics and the readiness of one app, and the three answers made from them."""

    def __init__(
        self, app: Redrive, metrics: Metrics | None = None, *, readiness: ReadinessCheck | None = None
    ) -> None:
        self._app = app
        self.metrics = Metrics(prefix=app.settings.metrics_prefix) if metrics is None else metrics
        self.metrics.subscribe(app.events)
        self.readiness: ReadinessCheck = Readiness(app) if readiness is None else readiness
        self._depths_ms: float | None = None
        self._letters_ms: float | None = None
        self._letters_pause_ms: float = LETTERS_EVERY_MS
        self._server_ms: float | None = None

    @property
    def routes(self) -> list[BaseRoute]:
        """To be put into any Starlette or FastAPI app."""
        return [
            Route("/metrics", self._metrics, name="metrics"),
            Route("/healthz", self._health, name="healthz"),
            Route("/readyz", self._ready, name="readyz"),
        ]

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"alive": True, "app": self._app.name, "version": version("redrive")})

    async def _ready(self, _request: Request) -> Response:
        obstacles = await self.readiness.obstacles()
        reasons = [{"code": o.code, "text": o.text, "queue": o.queue} for o in obstacles]
        return JSONResponse(
            {"ready": not reasons, "app": self._app.name, "reasons": reasons, "paused": list(self.readiness.paused)},
            status_code=503 if reasons else 200,
        )

    async def _metrics(self, _request: Request) -> Response:
        await self.refresh()
        return Response(self.metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def refresh(self) -> None:
        """Read depths and open letters, unless they were read just now; a store that is away is a scrape error."""
        now = self._app.clock.monotonic_ms()
        try:
            if self._depths_ms is None or now - self._depths_ms >= DEPTHS_EVERY_MS:
                self._depths_ms = now
                await self._read_depths()
            if self._letters_ms is None or now - self._letters_ms >= self._letters_pause_ms:
                self._letters_ms = now
                await self._read_letters()
                took_ms = self._app.clock.monotonic_ms() - now
                self._letters_pause_ms = max(LETTERS_EVERY_MS, took_ms / LETTERS_SHARE)
            if self._server_ms is None or now - self._server_ms >= SERVER_EVERY_MS:
                self._server_ms = now
                await self._read_server()
        except ConfigurationError:
            return  # not open yet: nothing to read, and no fault of the store
        except RedriveError:
            self.metrics.scrape_failed()

    async def _read_depths(self) -> None:
        depths = (await self._app.backend.broker.depths(self._app.consumers))[:QUEUES_SHOWN]
        now = self._app.clock.now()
        counts: dict[Labels, float] = {}
        ages: dict[Labels, float] = {}
        for depth in depths:
            queue = label_text(depth.queue)
            for state in ("ready", "scheduled", "leased"):
                counts[queue, state] = getattr(depth, state)
            ages[(queue,)] = 0.0 if depth.oldest_ready_at is None else max(0, now - depth.oldest_ready_at) / 1_000
        self.metrics.set_gauges({"queue_depth": counts, "queue_oldest_ready_age_seconds": ages})
        await self._read_tenants()

    async def _read_tenants(self) -> None:
        """Of all fair queues: who waits, and how far behind; a tenant of several queues as in the worst of them."""
        read = self._app.backend.standings
        queues = list(self._app.fair)[:QUEUES_SHOWN]
        if read is None or not queues:
            return
        fair = self._app.fair
        found = [each for queue in queues for each in reported(await read(queue, TENANTS_READ), fair.get(queue))]
        found.sort(key=lambda each: (each.record.rounds_without_processing, each.waiting), reverse=True)
        gauges: dict[str, dict[Labels, float]] = {name: {} for name in _TENANT_GAUGES}
        for place, standing in enumerate(found):
            labels = (label_text(standing.name) if place < TENANTS_SHOWN else OTHER,)
            for name, (worst, value) in _TENANT_GAUGES.items():
                own = value(standing.record)
                gauges[name][labels] = worst(gauges[name].get(labels, own), own)
        self.metrics.set_gauges(gauges)

    async def _read_letters(self) -> None:
        now = self._app.clock.now()
        stats = await self._app.backend.letters.stats(Selection(states=OPEN_STATES), top=QUEUES_SHOWN, ages_at=now)
        age_ms = 0 if stats.oldest_at is None else max(0, now - stats.oldest_at)
        self.metrics.set_gauges(
            {
                "dlq_size": {(): stats.total},
                "dlq_oldest_age_seconds": {(): age_ms / 1_000},
                "dlq_by_queue": _labelled(stats.by_queue, QUEUES_SHOWN, total=stats.total),
                "dlq_by_error_code": _labelled(stats.by_reason, CODES_SHOWN, total=stats.total),
                "dlq_by_company": _labelled(stats.by_tenant, TENANTS_SHOWN, total=stats.total),
            }
        )
        if stats.ages is not None:
            self.metrics.set_histogram("dlq_age_seconds", [*stats.ages.counts, stats.ages.total_ms / 1_000])

    async def _read_server(self) -> None:
        url = server_url(self._app.settings)
        if url is None:
            return
        reading = await read_server(url)
        memory = memory_of(reading)
        gauges: dict[str, dict[Labels, float]] = {
            "redis_memory_used_bytes": {(): memory.used_bytes},
            "redis_memory_max_bytes": {(): memory.limit_bytes},
        }
        if reading.oom_errors is not None:
            gauges["redis_oom_errors"] = {(): reading.oom_errors}
        self.metrics.set_gauges(gauges)


def _labelled(counts: dict[str, int], limit: int, *, total: int) -> dict[Labels, float]:
    """The largest `limit` of counts that come largest first, and the rest of `total` as `other`."""
    found: dict[Labels, float] = {}
    for name, count in list(counts.items())[:limit]:
        labels = (label_text(name),)
        found[labels] = found.get(labels, 0) + count
    rest = total - sum(found.values())
    return found if not rest else {**found, (OTHER,): rest}


def probes_app(app: Redrive, probes: Probes | None = None) -> Starlette:
    """An ASGI app with nothing but the probes of `app`; the caller opens the app."""
    return Starlette(routes=(probes or Probes(app)).routes)


def compose(app: Redrive, probes: Probes | None = None, *, is_opening: bool = True) -> Starlette:
    """An ASGI app with the probes and everything the app mounts.

    It opens the app for as long as it is served, unless whoever serves it does (`is_opening` False).
    """
    found = probes or Probes(app)
    mounts = [Mount(path, app=mounted) for path, mounted in sorted(app.mounts.items(), key=_longest_first)]

    @asynccontextmanager
    async def lifespan(_starlette: Starlette) -> AsyncIterator[None]:
        if not is_opening:
            yield
            return
        async with app:
            yield

    return Starlette(routes=[*found.routes, *mounts], lifespan=lifespan)


def _longest_first(entry: tuple[str, object]) -> tuple[int, str]:
    return -len(entry[0]), entry[0]
