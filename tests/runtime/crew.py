"""Handlers and workers for tests that need processes: python -m tests.runtime.crew URL JOURNAL NAME."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from redrive import DeadLetter, Delivery, Fixed, Redrive, Requeue, Retry, RetryLater

BUSY_MACHINE_LEASE = "3s"
"""Renewed every second: who lives keeps it though the machine lets it wait, who is killed soon loses it."""

# ------------------------------------------------------------------------------------ handlers with process=True


def echo(order: dict[str, Any], delivery: Delivery) -> None:
    """Answer on another queue."""
    assert delivery.extend_lease("1m")
    delivery.publish_sync(
        "echo", {"n": order["n"], "attempt": delivery.attempt, "pid": os.getpid()},
        tenant=delivery.tenant, trace_id=delivery.trace_id,
    )  # fmt: skip


def signal_as_told(order: dict[str, Any]) -> None:
    """Raise what the message says."""
    match order["raise"]:
        case "DeadLetter":
            raise DeadLetter("told so", code="TOLD_SO")
        case "RetryLater":
            raise RetryLater("1h")
        case _:
            raise Requeue("1h")


def die_as_told(order: dict[str, Any]) -> None:
    """Die of SIGKILL if the message says so."""
    if order["die"]:
        os.kill(os.getpid(), signal.SIGKILL)


def sleep_long(order: dict[str, Any]) -> None:
    """Outlive every limit."""
    time.sleep(600)  # sleep: it is killed before


# ------------------------------------------------------------------------------------ workers as processes


def make(name: str, url: str, journal: Path) -> Redrive:
    """One of the apps below, writing down what it does."""
    settings = {
        "durability": "normal",
        "grace": os.environ.get("CREW_GRACE", "20s"),
        "lock_timeout": os.environ.get("CREW_LOCK_TIMEOUT", "5s"),
    }
    app = Redrive("crew", broker=url, settings=settings)
    _APPS[name](app, journal)
    mine = {"pid": os.getpid()}
    app.events.subscribe(lambda event: note(journal, **{**_plain(event.fields), "event": event.name, **mine}))
    return app


def note(journal: Path, **fields: Any) -> None:
    """One JSON line, whole even when many processes write."""
    handle = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(handle, json.dumps({"at": time.time(), **fields}).encode() + b"\n")
    os.close(handle)


def _plain(fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if isinstance(value, str | int | float | list | None)}


def _sleeper(app: Redrive, journal: Path) -> None:
    """Sleeps on the loop as long as the message says, the first `short` attempts of the fleet apart."""

    @app.consumer("orders", retry=Retry(max_attempts=1), lease=BUSY_MACHINE_LEASE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        note(journal, start=order["n"], pid=os.getpid(), attempt=delivery.attempt)
        await asyncio.sleep(float(os.environ.get("CREW_SLEEP", order.get("s", 0))))  # sleep: the handler itself
        note(journal, end=order["n"], pid=os.getpid(), attempt=delivery.attempt)


def _thread_sleeper(app: Redrive, journal: Path) -> None:
    @app.consumer("orders", retry=Retry(max_attempts=1), lease=BUSY_MACHINE_LEASE)
    def handle(order: dict[str, Any], delivery: Delivery) -> None:
        note(journal, start=order["n"], pid=os.getpid(), attempt=delivery.attempt)
        time.sleep(float(order["s"]))  # sleep: the handler itself
        note(journal, end=order["n"], pid=os.getpid(), attempt=delivery.attempt)


def _loop_blocker(app: Redrive, journal: Path) -> None:
    @app.consumer("orders", retry=Retry(max_attempts=3), lease=BUSY_MACHINE_LEASE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        note(journal, start=order["n"], pid=os.getpid(), attempt=delivery.attempt)
        time.sleep(float(order["s"]))  # sleep: the handler itself
        note(journal, end=order["n"], pid=os.getpid(), attempt=delivery.attempt)


def _in_turns(app: Redrive, journal: Path) -> None:
    """One at a time, and a few milliseconds each."""

    @app.consumer("orders", fair_by="tenant", concurrency=1, retry=Retry(max_attempts=20), lease=BUSY_MACHINE_LEASE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        note(journal, start=order["n"], tenant=delivery.tenant, pid=os.getpid())
        await asyncio.sleep(0.005)  # sleep: the handler itself
        note(journal, end=order["n"], tenant=delivery.tenant, pid=os.getpid())


def _bomb(app: Redrive, journal: Path) -> None:
    @app.consumer("orders", retry=Retry(max_attempts=3, backoff=Fixed("1ms")), lease=BUSY_MACHINE_LEASE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        note(journal, start=order["n"], pid=os.getpid(), attempt=delivery.attempt)
        if order.get("bomb"):
            os.kill(os.getpid(), signal.SIGKILL)
        note(journal, end=order["n"], pid=os.getpid(), attempt=delivery.attempt)


def _one_sided(app: Redrive, journal: Path) -> None:
    """Fails for who is called A."""

    @app.consumer("orders", retry=Retry(max_attempts=3, backoff=Fixed("3s")), lease=BUSY_MACHINE_LEASE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        note(journal, who=delivery.headers["who"], attempt=delivery.attempt)
        if delivery.headers["who"] == "A":
            raise ConnectionError("A always fails")


def _patient(app: Redrive, journal: Path) -> None:
    """Holds its lease for longer than any test waits; hangs in the first attempt."""

    @app.consumer("orders", retry=Retry(max_attempts=3), lease="1h")
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        note(journal, start=order["n"], pid=os.getpid(), attempt=delivery.attempt)
        if delivery.attempt == 1:
            await asyncio.Event().wait()
        note(journal, end=order["n"], pid=os.getpid(), attempt=delivery.attempt)


def _bank(app: Redrive, journal: Path) -> None:
    @app.consumer("orders", retry=Retry(max_attempts=50, backoff=Fixed("1ms")), lease=BUSY_MACHINE_LEASE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        async with delivery.transaction() as tx:
            tx.execute("INSERT INTO effects (n) VALUES (?)", (order["n"],))
            tx.publish("receipts", {"n": order["n"]}, message_id=f"receipt-{order['n']}")
        note(journal, end=order["n"], pid=os.getpid(), attempt=delivery.attempt)


_APPS = {
    "sleeper": _sleeper,
    "thread-sleeper": _thread_sleeper,
    "loop-blocker": _loop_blocker,
    "in-turns": _in_turns,
    "bomb": _bomb,
    "one-sided": _one_sided,
    "patient": _patient,
    "bank": _bank,
}


if __name__ == "__main__":
    _, the_url, the_journal, the_name = sys.argv
    sys.exit(make(the_name, the_url, Path(the_journal)).worker(["orders"]).main())
