"""The contenders: what people use without a broker today, the ceiling, and redrive. Each has the same `run`."""

from __future__ import annotations

from typing import Final

from bench.measure import Contender

_HERE: Final = "bench.contenders"

REDRIVE: Final = Contender(name="redrive", title="redrive, in batches", module=f"{_HERE}.embedded", rate=16_000)
CALLERS: Final = Contender(
    name="redrive-callers",
    title="redrive, 100 callers",
    module=f"{_HERE}.embedded",
    option="callers",
    rate=6_000,
)
CEILING: Final = Contender(name="ceiling", title="ceiling: its SQL alone", module=f"{_HERE}.ceiling", rate=12_000)

PEERS: Final = (
    Contender(name="huey", title="huey, as it comes", module=f"{_HERE}.huey_sqlite", rate=500),
    Contender(name="huey-off", title="huey, fsync off", module=f"{_HERE}.huey_sqlite", option="off", rate=2_000),
    Contender(name="persist-queue", title="persist-queue", module=f"{_HERE}.persist_queue", rate=500),
    Contender(name="litequeue", title="litequeue, as it comes", module=f"{_HERE}.lite_queue", rate=5_000),
    Contender(
        name="litequeue-full", title="litequeue, made durable", module=f"{_HERE}.lite_queue", option="full", rate=500
    ),
)
"""None of them offers idempotency, retries with a policy, leases or dead letters: they do less for each message."""

CONTENDERS: Final = {contender.name: contender for contender in (REDRIVE, CALLERS, CEILING, *PEERS)}
