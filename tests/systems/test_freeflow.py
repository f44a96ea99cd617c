"""System C, letter by letter from its page: seven domains, three tiers, one dead-letter queue, the original key."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.systems.conftest import Place
from tests.systems.loading import Running, example, running

EVENTS = "freeflow.events"
DOMAINS = ("user", "auth", "alarm", "document", "workflow", "notification", "audit")
TIERS = {"30s": 30_000, "5m": 300_000, "30m": 1_800_000}
SCALE = "0.0005"
"""15 ms, 150 ms and 900 ms."""
SCALED = (15, 150, 900)


@asynccontextmanager
async def freeflow(place: Place, tmp_path: Path, **environment: str) -> AsyncIterator[tuple[ModuleType, Running]]:
    mail = tmp_path / "mail"
    mail.mkdir(exist_ok=True)
    variables = {"FREEFLOW_TIME_SCALE": SCALE, "FREEFLOW_MAIL": str(mail), **place.environment, **environment}
    with example("freeflow", **variables) as system:
        async with running(system.app) as run:
            yield system, run


async def send(system: ModuleType, routing_key: str, payload: Any, **arguments: Any) -> None:
    await system.app.publish(routing_key, payload, exchange=EVENTS, **arguments)


def rows(tmp_path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(tmp_path / "redrive.db")) as file:
        return file.execute(statement).fetchall()


# ------------------------------------------------------------------------------------------------ names


def test_every_name_and_argument_is_the_systems_own() -> None:
    with example("freeflow") as system:
        topology = system.app.topology

    types = {EVENTS: "topic", f"{EVENTS}.retry": "direct", f"{EVENTS}.dlx": "fanout"}
    assert types == {each.name: each.type for each in topology.exchanges}
    expected: dict[str, dict[str, Any]] = {f"{EVENTS}.dlq": {"x-queue-type": "classic"}}
    bindings = {(f"{EVENTS}.dlx", f"{EVENTS}.dlq", "")}
    for domain in DOMAINS:
        queue = f"freeflow.{domain}"
        expected[queue] = {"x-queue-type": "classic", "x-dead-letter-exchange": f"{EVENTS}.dlx"}
        bindings.add((EVENTS, queue, f"{domain}.*"))
        for tier, delay_ms in TIERS.items():
            expected[f"{queue}.retry.{tier}"] = {
                "x-queue-type": "classic",
                "x-message-ttl": delay_ms,
                "x-dead-letter-exchange": EVENTS,
                "x-dead-letter-routing-key": f"{domain}.retry",
            }
            bindings.add((f"{EVENTS}.retry", f"{queue}.retry.{tier}", f"{domain}.{tier}"))
    assert expected == {each.name: dict(each.arguments) for each in topology.queues}
    assert bindings == {(each.source, each.destination, each.routing_key) for each in topology.bindings}
    assert 21 == len([each for each in topology.queues if ".retry." in each.name])
    assert {each.durable for each in (*topology.queues, *topology.exchanges)} == {True}


def test_all_seven_domains_have_four_attempts() -> None:
    with example("freeflow") as system:
        assert {f"freeflow.{domain}": 4 for domain in DOMAINS} == {
            queue: consumer.max_attempts for queue, consumer in system.app.consumers.items()
        }


# ------------------------------------------------------------------------------------------------ the work


async def test_every_domain_does_its_work(place: Place, tmp_path: Path) -> None:
    async with freeflow(place, tmp_path) as (system, run):
        await send(system, "user.created", {"user": "ada", "mail": "ada@example.org"})
        await send(system, "document.uploaded", {"title": "notes", "text": "To be, or not to be"})
        await send(system, "alarm.raised", {"source": "pump 3", "severity": "critical"})
        await send(system, "workflow.begun", {"workflow": "order 7", "to": "draft"})
        for _ in range(5):
            await send(system, "auth.failed", {"user": "ada"})
        await run.until(
            lambda: (
                all(run.processed(f"freeflow.{domain}") for domain in DOMAINS)
                and run.processed("freeflow.auth") == 5
                and run.processed("freeflow.notification") == 2
            )
        )
        assert [] == await run.letters()

    assert [("ada", "ada@example.org")] == rows(tmp_path, "SELECT * FROM users")
    assert [("be", 2)] == rows(tmp_path, "SELECT word, count FROM words WHERE word = 'be'")
    assert [("pump 3", "critical")] == rows(tmp_path, "SELECT * FROM alarms")
    assert [("order 7", "draft")] == rows(tmp_path, "SELECT * FROM workflows")
    assert [("ada", 5)] == rows(tmp_path, "SELECT * FROM logins")
    mails = sorted(path.read_text().splitlines()[0] for path in (tmp_path / "mail").glob("*.eml"))
    assert ["To: ada", "To: operations"] == mails


async def test_the_audit_log_is_a_chain(place: Place, tmp_path: Path) -> None:
    async with freeflow(place, tmp_path) as (system, run):
        for number in range(10):
            await send(system, "audit.login", {"n": number})
        await run.until(lambda: run.processed("freeflow.audit") == 10)

    before = ""
    chain = rows(tmp_path, "SELECT entry, hash FROM audit ORDER BY number")
    for entry, found in chain:
        before = hashlib.sha256(f"{before}{entry}".encode()).hexdigest()
        assert before == found
    assert set(range(10)) == {json.loads(entry)["n"] for entry, _ in chain}
    assert {"audit.login"} == {json.loads(entry)["what"] for entry, _ in chain}


# ------------------------------------------------------------------------------------------------ tiers


async def test_a_failing_event_goes_up_the_tiers_and_dies(place: Place, tmp_path: Path) -> None:
    """30s, 5m, 30m, then the dead-letter queue: the handler sees its own key every time."""
    async with freeflow(place, tmp_path) as (system, run):
        await send(system, "user.renamed", {"user": "nobody", "to": "somebody"}, message_id="m-1")
        await run.until(lambda: run.named("delivery.dead_lettered"))
        (letter,) = await run.letters()
        retries = run.named("delivery.retry_scheduled")

    assert [1, 2, 3] == [each["attempt"] for each in retries]
    assert list(SCALED) == [each["delay_ms"] for each in retries]
    assert {"user.renamed"} == {each["routing_key"] for each in (*retries, *run.named("delivery.dead_lettered"))}
    assert (4, f"{EVENTS}.dlq", "freeflow.user") == (letter.attempt_count, letter.dead_letter_queue, letter.queue)
    gaps = [b.at - a.at for a, b in zip(letter.history, letter.history[1:], strict=False)]
    assert all(gap >= tier for gap, tier in zip(gaps, SCALED, strict=True)), gaps


async def test_what_can_never_succeed_dies_at_once(place: Place, tmp_path: Path) -> None:
    async with freeflow(place, tmp_path) as (system, run):
        await send(system, "user.cloned", {"user": "ada"})
        await send(system, "user.created", b"no json")
        await run.until(lambda: len(run.named("delivery.dead_lettered")) == 2)
        letters = await run.letters()

    assert ["MALFORMED_PAYLOAD", "UNKNOWN_EVENT"] == sorted(letter.reason.code for letter in letters)
    assert [] == run.named("delivery.retry_scheduled")


async def test_a_step_that_comes_too_early_is_taken_when_it_comes_back(place: Place, tmp_path: Path) -> None:
    """It asks for 2 minutes, which is no tier: on RabbitMQ the next longer one takes it."""
    async with freeflow(place, tmp_path, FREEFLOW_TIME_SCALE="0.002") as (system, run):
        await send(system, "workflow.step", {"workflow": "w", "to": "review"})
        await run.until(lambda: run.named("delivery.retry_scheduled"))
        await send(system, "workflow.begun", {"workflow": "w", "to": "draft"})
        await run.until(lambda: run.processed("freeflow.workflow") == 2)
        assert [] == await run.letters()

    assert [("w", "review")] == rows(tmp_path, "SELECT * FROM workflows")


async def test_a_redriven_event_goes_through_the_tiers_again(place: Place, tmp_path: Path) -> None:
    async with freeflow(place, tmp_path) as (system, run):
        await send(system, "user.renamed", {"user": "ada", "to": "grace"})
        await run.until(lambda: run.named("delivery.dead_lettered"))
        assert 1 == await run.redrive("freeflow.user")
        await run.until(lambda: len(run.named("delivery.dead_lettered")) == 2)
        await send(system, "user.created", {"user": "ada"})
        await run.until(lambda: run.processed("freeflow.user") == 1)
        assert 1 == await run.redrive("freeflow.user")
        await run.until(lambda: run.processed("freeflow.user") == 2)

    assert 6 == len(run.named("delivery.retry_scheduled"))
    assert [("grace",)] == rows(tmp_path, "SELECT name FROM users")
