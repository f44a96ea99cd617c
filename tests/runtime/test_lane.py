"""What follows from whom a failure is about: a lane is held or slowed, and no message pays for it (on a moved clock);
what a handler keeps goes along.
"""

from __future__ import annotations

import asyncio
import json
import smtplib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redrive import DeadLetter, Delivery, Fixed, Redrive, Retry, Rule
from redrive.core.policy.catalogue.smtp import outcome_unknown
from redrive.core.policy.failure import Failed
from redrive.testing import FakeClock
from tests.runtime.conftest import MakeApp
from tests.runtime.stage import Told, depth, letters, redrive_all, run_threads_at_once, working

DAY_MS = 86_400_000


class Ses:
    """A mail service with a limit for each second and for the last day; what it answers is recorded from Amazon's."""

    def __init__(self, clock: FakeClock, *, per_s: int = 14, per_day: int = 300) -> None:
        self.clock = clock
        self.per_s, self.per_day = per_s, per_day
        self.taken: list[int] = []
        self.tried: Counter[int] = Counter()

    def send(self) -> None:
        now = self.clock.now()
        self.tried[now // 1_000] += 1
        if sum(at > now - DAY_MS for at in self.taken) >= self.per_day:
            raise smtplib.SMTPDataError(454, b"Throttling failure: Daily message quota exceeded.")
        if sum(at // 1_000 == now // 1_000 for at in self.taken) >= self.per_s:
            raise smtplib.SMTPDataError(454, b"Throttling failure: Maximum sending rate exceeded.")
        self.taken.append(now)


@asynccontextmanager
async def on(clock: FakeClock, app: Redrive) -> AsyncIterator[Told]:
    """The app at work on a clock that the test moves."""
    run_threads_at_once()
    told = Told(app)
    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await clock.settle()
        yield told
        worker.stop()
        await clock.run_until(running.done)


async def test_a_quota_holds_the_lane_until_there_is_room_and_no_message_pays_for_it() -> None:
    """Case ML-05: 500 sends where 14 a second and 300 a day are allowed."""
    clock = FakeClock()
    app = Redrive("mail", broker="memory://", clock=clock)
    service, marked = Ses(clock), []

    @app.consumer("mails", retry=Retry(5, Fixed("1s")), breaker=None)
    async def send(mail: dict[str, Any], delivery: Delivery) -> None:
        assert delivery.attempt == 1
        service.send()
        marked.append(mail["n"])

    async with on(clock, app) as told:
        await app.publish_many("mails", [{"n": n} for n in range(500)])
        await clock.run_until(lambda: told.count("lane.held") == 1, limit_ms=60_000)
        await clock.advance(10_000)

        seconds = sorted(service.tried)
        assert (300, 300) == (len(service.taken), len(marked))
        assert 200 == await depth(app, "mails")
        assert ([], 0) == (await letters(app, "mails"), told.count("delivery.retry_scheduled"))
        steady = [service.tried[second] for second in seconds[2:-12]]
        assert max(service.tried[second] for second in seconds[1:]) <= 14
        assert 10 <= sum(steady) / len(steady) <= 14
        assert {("quota", "SMTP_454")} == {(each["cause"], each["error_code"]) for each in told.named("lane.held")}

        tried_before = sum(service.tried.values())
        await clock.advance(20 * 3_600_000)
        assert 200 == await depth(app, "mails")
        assert sum(service.tried.values()) - tried_before <= 25
        await clock.advance(6 * 3_600_000)
        assert sorted(range(500)) == sorted(marked)
        assert ([], 0) == (await letters(app, "mails"), told.count("delivery.retry_scheduled"))


async def test_wrong_credentials_kill_no_message_and_are_tried_by_one_at_a_time() -> None:
    clock = FakeClock()
    app = Redrive("mail", broker="memory://", clock=clock)
    is_wrong, tried, sent = True, [], []

    @app.consumer("mails", retry=Retry(1), breaker=None)
    async def send(mail: dict[str, Any]) -> None:
        tried.append(clock.now())
        if is_wrong:
            raise smtplib.SMTPAuthenticationError(535, b"5.7.8 Username and Password not accepted")
        sent.append(mail["n"])

    async with on(clock, app) as told:
        await app.publish_many("mails", [{"n": n} for n in range(500)])
        await clock.run_until(lambda: told.count("lane.held") == 1, limit_ms=10_000)
        await clock.advance(1_000)
        burst = len(tried)
        await clock.advance(20 * 60_000)
        assert burst <= 100
        assert len(tried) - burst <= 5
        is_wrong = False
        await clock.run_until(lambda: len(sent) == 500, limit_ms=400_000)
        assert [] == await letters(app, "mails")


async def test_a_rule_of_ones_own_holds_the_lane_too() -> None:
    clock = FakeClock()
    app = Redrive("shop", broker="memory://", clock=clock)
    is_closed, done = True, []

    class Closed(Exception):
        pass

    rules = [Rule(Closed, "transient", "SHOP_CLOSED", scope="lane", delay="10m")]

    @app.consumer("orders", retry=Retry(1), breaker=None, rules=rules, concurrency=1)
    async def handle(order: dict[str, Any]) -> None:
        if is_closed:
            raise Closed
        done.append(order["n"])

    async with on(clock, app) as told:
        await app.publish_many("orders", [{"n": n} for n in range(3)])
        await clock.run_until(lambda: told.count("lane.held") == 1, limit_ms=10_000)
        is_closed = False
        await clock.advance(590_000)
        assert [] == done
        await clock.run_until(lambda: len(done) == 3, limit_ms=30_000)


async def test_a_told_delay_is_kept_at_least() -> None:
    """Case ML-02: greylisting with a time."""
    clock = FakeClock()
    app = Redrive("mail", broker="memory://", clock=clock)
    tried: list[int] = []

    @app.consumer("mails", retry=Retry(5, Fixed("1s")))
    async def send(mail: dict[str, Any]) -> None:
        tried.append(clock.now())
        if len(tried) == 1:
            raise smtplib.SMTPDataError(451, b"4.7.1 Greylisting in action, come back in 300 seconds")

    async with on(clock, app):
        await app.publish("mails", {})
        await clock.run_until(lambda: len(tried) == 2, limit_ms=400_000)
        assert 300_000 <= tried[1] - tried[0] <= 301_000


async def test_an_unknown_outcome_is_repeated_once_and_late_then_a_person_decides() -> None:
    clock = FakeClock()
    app = Redrive("mail", broker="memory://", clock=clock)
    tried: list[int] = []

    @app.consumer("mails", retry=Retry(5, Fixed("1s")))
    async def send(mail: dict[str, Any]) -> None:
        tried.append(clock.now())
        raise Failed(outcome_unknown("connection reset"))

    async with on(clock, app) as told:
        await app.publish("mails", {})
        await clock.run_until(lambda: told.count("delivery.dead_lettered") == 1, limit_ms=DAY_MS)
        [letter] = await letters(app, "mails")

    assert 2 == len(tried)
    assert 900_000 <= tried[1] - tried[0] <= 901_000
    assert "SMTP_OUTCOME_UNKNOWN" == letter.reason.code


# ------------------------------------------------------------------------------------------------ what is kept


async def test_what_a_handler_keeps_is_there_in_the_next_attempt_in_the_letter_and_after_a_redrive(
    make_app: MakeApp,
) -> None:
    app = make_app()
    seen: list[tuple[int, dict[str, Any]]] = []
    is_final = False

    @app.consumer("orders", retry=Retry(2, Fixed("1ms")), attempt_field="attempt", idempotency_ttl="1h")
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        seen.append((order["attempt"], delivery.kept))
        if is_final:
            return
        delivery.keep(done=[*delivery.kept.get("done", []), delivery.attempt])
        raise ConnectionError("away")

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"id": 7}, message_id="m-1")
        await told.until("delivery.dead_lettered")
        [letter] = await letters(app)
        is_final = True
        await redrive_all(app)
        await told.until("deliveries.processed")

    assert [(1, {}), (2, {"done": [1]}), (1, {"done": [1, 2]})] == seen
    assert {"id": 7} == json.loads(letter.message.original_body)
    assert {"done": [1, 2]} == json.loads(letter.message.body)["_redrive"]


async def test_what_is_kept_beside_a_failure_of_the_lane_is_not_lost(make_app: MakeApp) -> None:
    app = make_app()
    seen: list[tuple[int, dict[str, Any]]] = []

    @app.consumer("orders", retry=Retry(3, Fixed("1ms")), rules=[Rule(ConnectionError, "transient", scope="lane")])
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        seen.append((delivery.attempt, delivery.kept))
        if len(seen) == 1:
            delivery.keep(half=True)
            raise ConnectionError("throttled")

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"id": 7}, message_id="m-1")
        await told.until("deliveries.processed")

    assert [(1, {}), (2, {"half": True})] == seen


async def test_a_body_that_is_no_object_has_no_place_for_it(make_app: MakeApp) -> None:
    app = make_app()

    @app.consumer("orders")
    async def handle(order: bytes, delivery: Delivery) -> None:
        try:
            delivery.keep(done=1)
        except Exception as error:
            raise DeadLetter(str(error)) from None

    told = Told(app)
    async with working(app):
        await app.publish("orders", b"plain")
        [fields] = await told.until("delivery.dead_lettered")

    assert "no JSON object" in fields["reason_text"]


def keeping(order: dict[str, Any], delivery: Delivery) -> None:
    """Runs in a process of its own."""
    before = delivery.kept
    delivery.keep(done=[*before.get("done", []), delivery.attempt])
    if delivery.attempt < 3:
        raise ConnectionError(str(delivery.kept))


async def test_a_handler_in_its_own_process_keeps_too(make_app: MakeApp) -> None:
    app = make_app()
    app.consumer("orders", process=True, retry=Retry(3, Fixed("1ms")))(keeping)
    told = Told(app)

    async with working(app):
        await app.publish("orders", {"id": 7}, message_id="m-1")
        await told.until("deliveries.processed")

    assert ["{'done': [1]}", "{'done': [1, 2]}"] == [
        each["error_text"] for each in told.named("delivery.retry_scheduled")
    ]
