"""System A, worker: classification, attempts, dead letters, idempotency states, replay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from redrive.core.idempotency import ClaimState
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.redrive import JobOptions
from redrive.service import Service
from tests import redis as redis_servers
from tests.systems.conftest import EMBEDDED
from tests.systems.courier import DLQ_QUEUE, MAIN_QUEUE, courier

KEY = "courier-x:evt-1"
EVENT = {
    "eventId": "evt-1",
    "eventType": "shipment.status.updated",
    "idempotencyKey": KEY,
    "traceId": "req_1",
    "payload": {"shipmentId": "SHP-1"},
}
WAIT_S = 60.0


class Behind:
    """In place of the service behind: fails as told, then takes everything. Notes each event's attempt field."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.always: Exception | None = None
        self.attempts: list[tuple[int, int]] = []
        self.taken: list[str] = []

    def send(self, event: Any, *, attempt: int) -> None:
        self.attempts.append((event.attempt, attempt))
        if self.always is not None:
            raise self.always
        if self.failures:
            raise self.failures.pop(0)
        self.taken.append(event.event_id)


@pytest.fixture(params=[EMBEDDED, redis_servers.OLD, redis_servers.NEW])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The variables that make it run here: the embedded file; and by its URL alone an empty Redis and Valkey."""
    store = f"sqlite:///{tmp_path / 'courier.db'}"
    broker = store if request.param == EMBEDDED else redis_servers.empty_server(request.param).url
    return {"REDRIVE_BROKER": broker, "REDRIVE_STORE": store}


@pytest.fixture
def system(place: dict[str, str]) -> Any:
    with courier(**place, RETRY_BACKOFF_BASE_MS="5", RETRY_MAX_ATTEMPTS="3") as system:
        vars(system)["downstream"] = Behind()
        yield system


@pytest.fixture
async def running(system: ModuleType) -> AsyncIterator[ModuleType]:
    async with at_work(system):
        yield system


@asynccontextmanager
async def at_work(system: ModuleType) -> AsyncIterator[None]:
    """The app open, and one worker."""
    async with system.app:
        worker = system.app.worker()
        task = asyncio.create_task(worker.run())
        yield
        worker.stop()
        await task


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """What `condition` finds, as soon as it finds it."""
    async with asyncio.timeout(WAIT_S):
        while not (found := await condition()):
            await asyncio.sleep(0.005)  # sleep: until it is looked at again
    return found


async def state(system: ModuleType, key: str = KEY) -> ClaimState | None:
    record = await system.app.backend.claims.get(MAIN_QUEUE, key)
    return None if record is None else record.state


async def letters(system: ModuleType, count: int = 1, **selection: Any) -> list[Letter]:
    service = Service(system.app)

    async def enough() -> list[Letter]:
        page = await service.letters(Selection(queue=DLQ_QUEUE, **selection))
        found = [(await service.letter(summary.id)).letter for summary in page.letters]
        return found if len(found) >= count else []

    return list(await until(enough))


async def test_a_message_without_a_required_field_is_dead_at_once(running: ModuleType) -> None:
    bodies = [{name: value for name, value in EVENT.items() if name != missing} for missing in EVENT]
    raw = [b"", b"[]", b'"x"', b"{", b"\xff"]
    for number, body in enumerate([*(json.dumps(body).encode() for body in bodies), *raw]):
        await running.app.publish(MAIN_QUEUE, body, message_id=f"bad-{number}", content_type="application/json")

    found = await letters(running, len(bodies) + len(raw))

    assert {1} == {letter.attempt_count for letter in found}
    assert {"VALIDATION_FAILED", "MALFORMED_PAYLOAD"} == {letter.reason.code for letter in found}
    assert [] == running.downstream.attempts
    assert sorted([*(json.dumps(body).encode() for body in bodies), *raw]) == sorted(
        letter.message.original_body for letter in found
    )


async def test_transient_failures_are_retried_and_the_handler_sees_the_true_attempt(running: ModuleType) -> None:
    running.downstream.failures = [TimeoutError("slow"), ConnectionResetError("gone")]

    await running.app.publish(MAIN_QUEUE, EVENT, idempotency_key=KEY)
    await until(lambda: _is(running, ClaimState.PROCESSED))

    assert [(1, 1), (2, 2), (3, 3)] == running.downstream.attempts
    assert ["evt-1"] == running.downstream.taken


async def _is(system: ModuleType, wanted: ClaimState, key: str = KEY) -> bool:
    """Without one transaction for all of it the letter is stored before the claim ends."""
    return await state(system, key) is wanted


@pytest.mark.parametrize(
    ("error", "reason", "error_code", "attempts"),
    [
        (TimeoutError("slow"), "DOWNSTREAM_TIMEOUT_EXHAUSTED", "TIMEOUT", 3),
        (ConnectionRefusedError(111, "refused"), "ECONNREFUSED_EXHAUSTED", "ECONNREFUSED", 3),
        (RuntimeError("anything else"), "RUNTIME_ERROR_EXHAUSTED", "RUNTIME_ERROR", 3),
        (json.JSONDecodeError("bad", "{", 1), "MALFORMED_PAYLOAD", "MALFORMED_PAYLOAD", 1),
    ],
)
async def test_a_dead_letter_names_its_reason_and_every_attempt(
    running: ModuleType, error: Exception, reason: str, error_code: str, attempts: int
) -> None:
    running.downstream.always = error

    await running.app.publish(MAIN_QUEUE, EVENT, idempotency_key=KEY, trace_id="req_1")
    [letter] = await letters(running)

    assert (reason, attempts) == (letter.reason.code, letter.attempt_count)
    assert list(range(1, attempts + 1)) == [entry.attempt for entry in letter.history]
    assert {error_code} == {entry.error_code for entry in letter.history}
    assert EVENT == json.loads(letter.message.original_body)
    await until(lambda: _is(running, ClaimState.DEAD_LETTERED))


async def test_what_the_service_calls_invalid_is_permanent(running: ModuleType) -> None:
    from examples.courier.downstream import PayloadRefused

    running.downstream.always = PayloadRefused("422 unknown shipment")

    await running.app.publish(MAIN_QUEUE, EVENT, idempotency_key=KEY)
    [letter] = await letters(running)

    assert ("VALIDATION_FAILED", 1) == (letter.reason.code, letter.attempt_count)


async def test_a_replay_sends_the_whole_message_with_attempt_1_and_closes_the_letter(running: ModuleType) -> None:
    running.downstream.always = TimeoutError("slow")
    await running.app.publish(MAIN_QUEUE, EVENT, idempotency_key=KEY)
    [letter] = await letters(running)
    running.downstream.always = None
    running.downstream.attempts.clear()

    await Service(running.app).redrive(Selection(queue=DLQ_QUEUE), JobOptions(limit=10), actor="ann")
    await until(lambda: _is(running, ClaimState.PROCESSED))

    closed = await letters(running, states=frozenset({ReviewState.CLOSED}))
    view = await Service(running.app).letter(letter.id)
    assert [(1, 1)] == running.downstream.attempts
    assert ["evt-1"] == running.downstream.taken
    assert [letter.id] == [each.id for each in closed]
    assert ["reviewed", "replayed", "closed"] == [
        entry.action for entry in view.audit if entry.action in set(ReviewState)
    ]
    assert {"ann"} == {entry.actor for entry in view.audit if entry.action in {"reviewed", "replayed"}}


async def test_a_replay_takes_no_more_than_its_limit(running: ModuleType) -> None:
    running.downstream.always = TimeoutError("slow")
    for number in range(5):
        event = {**EVENT, "eventId": f"e{number}", "idempotencyKey": f"k{number}"}
        await running.app.publish(MAIN_QUEUE, event, idempotency_key=f"k{number}")
    await letters(running, 5)
    running.downstream.always = None

    await Service(running.app).redrive(Selection(queue=DLQ_QUEUE), JobOptions(limit=2), actor="ann")
    await letters(running, 2, states=frozenset({ReviewState.CLOSED}))

    assert 3 == len(await letters(running, 3, states=frozenset({ReviewState.PENDING})))


async def test_a_processed_key_is_not_handled_again_but_a_dead_one_is_sent_anew(running: ModuleType) -> None:
    await running.app.publish(MAIN_QUEUE, EVENT, idempotency_key=KEY, once=True, digest="a")
    await until(lambda: _is(running, ClaimState.PROCESSED))

    again = await running.app.publish(MAIN_QUEUE, EVENT, idempotency_key=KEY, once=True, digest="a")
    other = {**EVENT, "idempotencyKey": "other"}
    running.downstream.always = TimeoutError("slow")
    await running.app.publish(MAIN_QUEUE, other, idempotency_key="other", once=True, digest="b")
    await until(lambda: _is(running, ClaimState.DEAD_LETTERED, "other"))
    running.downstream.always = None
    anew = await running.app.publish(MAIN_QUEUE, other, idempotency_key="other", once=True, digest="b")
    await until(lambda: _is(running, ClaimState.PROCESSED, "other"))

    assert (True, False) == (again.duplicate, anew.duplicate)
    assert ["evt-1", "evt-1"] == running.downstream.taken


@pytest.mark.parametrize("version", [redis_servers.OLD, redis_servers.NEW])
async def test_in_redis_the_dead_letter_lies_in_its_queue_too_and_leaves_it_with_its_letter(
    version: str, tmp_path: Path
) -> None:
    """Where Node and its dashboards find it; the job it came from is gone, and its `attempt` was rewritten there."""
    server = redis_servers.empty_server(version)
    here = {"REDRIVE_BROKER": server.url, "REDRIVE_STORE": f"sqlite:///{tmp_path / 'courier.db'}"}
    with courier(**here, RETRY_BACKOFF_BASE_MS="5", RETRY_MAX_ATTEMPTS="3") as system:
        vars(system)["downstream"] = behind = Behind()
        behind.always = TimeoutError("slow")
        async with at_work(system):
            # As a producer in Node sends it: no claim is registered, the first start makes it.
            server.ask("HSET", "bull:courier-events-main:job-1", "name", "event", "data", json.dumps(EVENT), "opts",
                       "{}", "timestamp", 1_700_000_000_000, "delay", 0, "priority", 0)  # fmt: skip
            server.ask("LPUSH", "bull:courier-events-main:wait", "job-1")
            server.ask("ZADD", "bull:courier-events-main:marker", 0, "0")
            [letter] = await letters(system)
            await until(lambda: _dead_jobs(server, 1))

            (dead,) = await _dead_jobs(server, 1)
            document = json.loads(server.ask("HGET", dead, "data"))
            assert ("courier-x:evt-1", letter.id, 3) == (
                document["idempotencyKey"], document["letterId"], document["attemptCount"],
            )  # fmt: skip
            assert [(1, 1), (2, 2), (3, 3)] == behind.attempts
            behind.always = None
            await Service(system.app).redrive(Selection(queue=DLQ_QUEUE), JobOptions(limit=10), actor="ann")
            await until(lambda: _dead_jobs(server, 0))
            assert (1, 1) == behind.attempts[-1]


async def _dead_jobs(server: redis_servers.Redis, count: int) -> list[bytes] | None:
    """The jobs of the dead-letter queue, once there are so many."""
    keys = server.ask("KEYS", "bull:courier-events-dlq:*")
    found = [key for key in keys if server.ask("TYPE", key) == b"hash" and server.ask("HEXISTS", key, "data")]
    return found or [b""] if len(found) == count else None


def test_the_downstream_client_names_what_the_service_did(tmp_path: Path) -> None:
    from examples.courier.downstream import Downstream, DownstreamUnavailable, PayloadRefused
    from examples.courier.messages import CourierEvent
    from redrive.demo.downstream import FlakyService, Mood

    event = CourierEvent(event_id="e", event_type="t", idempotency_key="schlüssel", trace_id="r", payload={})
    service = FlakyService()
    downstream = Downstream(url=service.url, timeout_s=WAIT_S)
    with pytest.raises(ConnectionRefusedError):
        downstream.send(event, attempt=1)

    service.open()
    try:
        for mood, error in {
            Mood.HANG: TimeoutError,
            Mood.BROKEN: DownstreamUnavailable,
            Mood.PICKY: PayloadRefused,
            Mood.GARBAGE: Exception,
        }.items():
            service.treat({"e": mood})
            # Only the one that never answers is given up soon: a busy machine is slow with the others.
            timeout_s = 0.2 if mood is Mood.HANG else WAIT_S
            with pytest.raises(error):
                Downstream(url=service.url, timeout_s=timeout_s).send(event, attempt=1)
        service.mend()
        downstream.send(event, attempt=2)
    finally:
        service.close()
    assert ["e"] == service.taken()
