"""Dead letters of others, collected from a real RabbitMQ: stored before they are acknowledged, each once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from redrive import Redrive
from redrive.core.letters.selection import Selection
from redrive.errors import BrokerUnavailableError
from redrive.runtime import collector
from redrive.runtime.collector import Collected, OnCollected
from redrive.service import Service
from tests.rabbit import Rabbit
from tests.rabbitmq.by_hand import CLASSIC, QUORUM, Hands, Shell

DEAD = "orders.dlq"
OTHERS: dict[str, dict[str, Any]] = {
    "nservicebus": {
        "NServiceBus.FailedQ": "orders",
        "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
        "NServiceBus.ExceptionInfo.Message": "no answer from 10.0.0.7 after 31 s",
    },
    "spring": {
        "x-exception-stacktrace": "java.net.ConnectException: refused\n\tat x.Y.z(Y.java:7)",
        "x-exception-message": "connection refused",
        "x-original-queue": "orders",
    },
    "plain": {"x-tenant": "acme"},
}

COLLECT = """
import asyncio, os, signal, sys
from redrive import Redrive
from redrive.runtime import collecting
from redrive.runtime import collector
from redrive.service import Service

collecting.LEASE_MS = 500

async def main():
    app = Redrive("found", broker=sys.argv[1], settings={"store": sys.argv[2], "log_level": "error"})
    async with app:
        broker, letters = app.backend.broker, app.backend.letters
        if sys.argv[3] == "before the store":
            async def put(batch): os.kill(os.getpid(), signal.SIGKILL)
            letters.put = put
        else:
            async def settle(batch): os.kill(os.getpid(), signal.SIGKILL)
            broker.settle = settle
        await Service(app).collect("orders.dlq")

asyncio.run(main())
"""


@pytest.fixture(params=["classic", "quorum"])
def dead(request: pytest.FixtureRequest, hands: Hands) -> str:
    hands.queue("orders", CLASSIC)
    return hands.queue(DEAD, CLASSIC if request.param == "classic" else QUORUM)


@pytest_asyncio.fixture
async def service(rabbit: Rabbit, tmp_path: Path) -> AsyncIterator[Service]:
    app = Redrive("found", broker=rabbit.url, settings={"store": f"sqlite:///{tmp_path / 'store.db'}"})
    async with app:
        yield Service(app)


def fill(hands: Hands, count: int, *, with_ids: bool = True) -> None:
    kinds = list(OTHERS.values())
    for number in range(count):
        more = {"message_id": f"m{number}"} if with_ids else {}
        hands.publish(DEAD, f"body {number}".encode(), headers={**kinds[number % 3], "n": number}, **more)


@pytest.mark.asyncio
async def test_everything_is_taken_and_nothing_is_taken_twice(service: Service, hands: Hands, dead: str) -> None:
    fill(hands, 250)

    done = await service.collect(dead)
    again = await service.collect(dead)

    assert (250, 250, 0) == (done.taken, done.new, again.taken)
    assert {"orders": 167, DEAD: 83} == dict(done.by_queue)
    assert 3 == len(done.by_group)
    assert 0 == hands.ready(dead)
    found = [(await service.letter(each.id)).letter for each in (await service.letters(Selection(), limit=500)).letters]
    assert {f"body {number}".encode() for number in range(250)} == {letter.message.body for letter in found}


@pytest.mark.asyncio
async def test_a_dry_run_takes_nothing(service: Service, hands: Hands, dead: str) -> None:
    fill(hands, 5)

    seen, _ = await service.collectable(dead)

    assert 5 == len(seen) == hands.ready(dead)
    assert {"System.TimeoutException", "java.net.ConnectException", None} == {each.error_type for each in seen}
    assert not (await service.letters(Selection())).letters


@pytest.mark.asyncio
async def test_messages_that_are_alike_in_everything_are_all_kept(service: Service, hands: Hands, dead: str) -> None:
    """Case RC-04: without any id, two equal messages are two."""
    for _ in range(3):
        hands.publish(dead, b"same", headers={"x-original-queue": "orders"})
    first = await service.collect(dead)
    hands.publish(dead, b"same", headers={"x-original-queue": "orders"})
    second = await service.collect(dead)

    assert (3, 1) == (first.new, second.new)
    assert 4 == (await service.stats(Selection())).total


@pytest.fixture(params=[2, 100])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages come in several hand-overs, or in one."""
    monkeypatch.setattr(collector, "BATCH", request.param)


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("moment", ["before the store", "before the acknowledgement"])
@pytest.mark.asyncio
async def test_of_messages_alike_in_everything_none_is_lost_by_a_kill(
    service: Service, rabbit: Rabbit, hands: Hands, dead: str, tmp_path: Path, *, moment: str
) -> None:
    """Case RC-04: rather twice than not at all."""
    for _ in range(5):
        hands.publish(dead, b"same", headers={"x-original-queue": "orders"})
    store = f"sqlite:///{tmp_path / 'store.db'}"

    subprocess.run([sys.executable, "-c", COLLECT, rabbit.url, store, moment], check=False, timeout=120)
    hands.wait_for(dead, 5)
    stored = (await service.stats(Selection())).total
    await service.collect(dead)

    assert 0 == hands.ready(dead)
    assert (stored > 0) == (moment == "before the acknowledgement")
    # One of those handed over again is known; what is like it may be another message.
    assert (await service.stats(Selection())).total == (stored + 4 if stored else 5)


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("moment", ["before the store", "before the acknowledgement"])
@pytest.mark.asyncio
async def test_killed_in_between_nothing_is_lost_and_nothing_doubled(
    service: Service, rabbit: Rabbit, hands: Hands, dead: str, tmp_path: Path, *, moment: str, with_ids: bool
) -> None:
    fill(hands, 30, with_ids=with_ids)
    store = f"sqlite:///{tmp_path / 'store.db'}"

    killed = subprocess.run([sys.executable, "-c", COLLECT, rabbit.url, store, moment], check=False, timeout=120)
    hands.wait_for(dead, 30)
    stored = (await service.stats(Selection())).total
    done = await service.collect(dead)

    assert -9 == killed.returncode
    # What one take brings is the broker's business; all of it was stored before the kill, or nothing.
    assert (stored > 0) == (moment == "before the acknowledgement")
    assert (30, 30 - stored) == (done.taken, done.new)
    assert 30 == (await service.stats(Selection())).total
    assert 0 == hands.ready(dead)


@pytest.mark.asyncio
async def test_a_collected_letter_goes_back_where_it_came_from(service: Service, hands: Hands, dead: str) -> None:
    fill(hands, 3)
    await service.collect(dead)

    view = await service.redrive(Selection(queue="orders"), actor="ann")
    sent = hands.take_all("orders")

    assert (2, 0) == (view.job.counts.sent, view.job.counts.skipped)
    assert [b"body 0", b"body 1"] == sorted(each.body for each in sent)
    assert all(each.headers["x-redriven-by"] == "ann" and "n" in each.headers for each in sent)
    assert not [name for each in sent for name in each.headers if name.startswith(("NServiceBus", "x-exception"))]


def test_a_newcomer_finds_groups_reads_and_redrives(
    rabbit: Rabbit, hands: Hands, shell: Shell, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of docs/how-to/collect.md, on a broker full of others' dead letters."""
    fill(hands, 30)
    monkeypatch.setenv("REDRIVE_BROKER", rabbit.url)

    dry = shell.run("dlq", "collect", dead, "--from", "orders", "--dry-run", "--json")
    done = shell.run("dlq", "collect", dead, "--from", "orders", "--json")
    groups = shell.run("dlq", "groups", "--json")
    listed = shell.run("dlq", "list", "orders", "--filter", "class:System.TimeoutException", "--json")
    first = listed.json["letters"][0]["id"]
    shown = shell.run("dlq", "show", first, "--json")
    few = shell.run("dlq", "redrive", "orders", "--limit", "20", "--yes", "--json")
    sent = shell.run("dlq", "redrive", "orders", "--rate", "50/s", "--yes", "--json")

    assert 20 == len(dry.json["letters"])
    assert {"taken": 30, "new": 30, "by_queue": {"orders": 30}} == {
        name: done.json[name] for name in ("taken", "new", "by_queue")
    }
    assert [10, 10, 10] == [each["waiting"] for each in groups.json["groups"]]
    assert 10 == len(listed.json["letters"])
    assert first == shown.json["id"]
    assert (0, 20) == (few.code, few.json["job"]["sent"])
    assert (0, 10) == (sent.code, sent.json["job"]["sent"])
    hands.wait_for("orders", 30)


def test_a_collect_that_ends_early_says_what_was_taken_and_how_to_go_on(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks_off(self: Service, *_: Any, on_collected: OnCollected, **__: Any) -> Collected:
        on_collected(Collected(taken=3))
        raise BrokerUnavailableError("the connection was lost")

    monkeypatch.setattr(Service, "collect", breaks_off)

    ran = shell.run("dlq", "collect", "orders.dlq", "--broker", "sqlite:///shop.db")

    assert 1 == ran.code
    assert "Ended early: 3 messages taken, each stored first" in ran.err
    assert "Go on: the same command." in ran.err


def test_a_queue_that_is_not_there_is_an_error_and_makes_none(
    rabbit: Rabbit, shell: Shell, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_BROKER", rabbit.url)

    ran = shell.run("dlq", "collect", "nowhere.dlq")

    assert ran.code == 1
    assert 'There is no queue "nowhere.dlq"' in ran.err
    with pytest.raises(Exception, match="NOT_FOUND"):
        hands.ready("nowhere.dlq")
