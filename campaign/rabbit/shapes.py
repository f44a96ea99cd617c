"""The topologies messages are sent through: systems B, C and D with their delays scaled down, and the default shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from redrive import Exponential, Fixed, Retry, Tiers
from redrive.core.topology.model import EMPTY, Topology
from redrive.core.topology.recipes import fanout_bus, retry_per_queue, tiered_retry

DELAY: Final = "300ms"
TIERS: Final = {"30s": "200ms", "5m": "500ms", "30m": "1s"}
DOMAINS: Final = ("user", "auth", "alarm", "document", "workflow", "notification", "audit")
PIPELINE: Final = {
    "q.upload.commands": {"domain.commands": ["commands.upload.#", "commands.file.reprocess.*"]},
    "q.validator": {"domain.events": "files.uploaded.*"},
    "q.thumbnail": {"domain.events": "files.validated.*"},
    "q.extractor": {"domain.events": "files.validated.*"},
    "q.projection": {"domain.events": "#"},
    "q.notification": {"domain.events": ["processing.#", "files.rejected.*"]},
    "q.audit": {"domain.events": "#"},
}
ALL_EVENTS: Final = ("q.projection", "q.audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a message is published, and which queues get it."""

    exchange: str
    key: str
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`topology(safe)`, the policy of its consumers, and the routes, which messages take in turn."""

    topology: Callable[[bool], Topology]
    retry: Retry
    routes: tuple[Route, ...]

    @property
    def queues(self) -> tuple[str, ...]:
        """Every consumer queue."""
        return tuple(dict.fromkeys(queue for route in self.routes for queue in route.queues))

    def route(self, number: int) -> Route:
        """The way of the message with this number."""
        return self.routes[number % len(self.routes)]


BUS: Final = Shape(
    topology=lambda safe: fanout_bus("wms-stock", "wms-labels", delay=DELAY, safe=safe),
    retry=Retry(max_attempts=11, backoff=Fixed(DELAY)),
    routes=(Route(exchange="wms.main-exchange", key="", queues=("wms.queue.wms-stock", "wms.queue.wms-labels")),),
)
"""System B: two services, each gets every message."""

FREEFLOW: Final = Shape(
    topology=lambda safe: tiered_retry("freeflow", domains=DOMAINS, tiers=TIERS, safe=safe),
    retry=Retry(max_attempts=4, backoff=Tiers(*TIERS.values())),
    routes=tuple(
        Route(exchange="freeflow.events", key=f"{domain}.created", queues=(f"freeflow.{domain}",)) for domain in DOMAINS
    ),
)
"""System C: seven domains."""

FILES: Final = Shape(
    topology=lambda safe: retry_per_queue(PIPELINE, delay=DELAY, safe=safe),
    retry=Retry(max_attempts=3, backoff=Fixed(DELAY)),
    routes=(
        Route(exchange="domain.commands", key="commands.upload.begin", queues=("q.upload.commands",)),
        Route(exchange="domain.events", key="files.uploaded.pdf", queues=("q.validator", *ALL_EVENTS)),
        Route(exchange="domain.events", key="files.validated.pdf", queues=("q.thumbnail", "q.extractor", *ALL_EVENTS)),
        Route(exchange="domain.commands", key="commands.file.reprocess.all", queues=("q.upload.commands",)),
        Route(exchange="domain.events", key="processing.done", queues=("q.notification", *ALL_EVENTS)),
    ),
)
"""System D: seven queues, up to four of which get one message."""

ORDERS: Final = Shape(
    topology=lambda _safe: EMPTY,
    retry=Retry(max_attempts=10, backoff=Exponential("100ms", factor=2, cap="2s", jitter="±25%")),
    routes=(Route(exchange="", key="orders", queues=("orders",)),),
)
"""Nothing said about the topology: the safe shape that redrive declares by itself."""

SHAPES: Final[Mapping[str, Shape]] = {"bus": BUS, "freeflow": FREEFLOW, "files": FILES, "orders": ORDERS}
