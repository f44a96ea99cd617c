"""How often a handler runs, and what becomes of the message then (case RC-02, RC-04, RC-08, ID-05, ID-07)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from redrive import ConfigurationError, Delivery, Fixed, Redrive, Retry
from redrive.core.ports import Received
from redrive.runtime.ledger import OrderedLedger
from tests.runtime.stage import Told, depth, letters, quiet, redrive_all, working

AT_ONCE = Fixed("1ms")


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_a_handler_that_always_fails_runs_max_attempts_times_and_then_there_is_one_letter(
    app: Redrive, attempts: int
) -> None:
    runs: list[int] = []

    @app.consumer("orders", retry=Retry(max_attempts=attempts, backoff=AT_ONCE))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        raise TimeoutError("downstream")

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1}, message_id="m-1")
        await told.until("delivery.dead_lettered")

        (letter,) = await letters(app)
        assert list(range(1, attempts + 1)) == runs
        assert attempts == letter.attempt_count == len(letter.history)
        assert letter.reason.code == "DOWNSTREAM_TIMEOUT_EXHAUSTED"
        assert attempts - 1 == told.count("delivery.retry_scheduled")
        assert await depth(app, "orders") == 0


@pytest.mark.parametrize("attempts", [0, -1, "many", None, 1.5])
def test_a_number_of_attempts_that_is_none_is_refused_before_anything_is_consumed(attempts: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"max_attempts"):
        Retry(max_attempts=attempts)


def test_a_number_of_attempts_as_text_is_that_number() -> None:
    assert Retry(max_attempts="3").max_attempts == 3  # type: ignore[arg-type]


class SaysOneForEver:
    """A broker that counts nothing itself, and that claims one rejection on every copy after the first."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._seen: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def receive(self, queue: str, **arguments: Any) -> list[Received]:
        return [self._stamped(each) for each in await self._broker.receive(queue, **arguments)]

    def _stamped(self, received: Received) -> Received:
        message = received.message
        self._seen[message.id] += 1
        if self._seen[message.id] > 1:
            death = {"queue": "orders", "reason": "rejected", "count": 1}
            message = replace(message, headers={**message.headers, "x-death": [death]})
        return replace(received, message=message, starts=None, history=())


async def test_a_broker_that_says_one_for_ever_does_not_make_a_message_immortal() -> None:
    app = Redrive("shop", broker="memory://")
    runs: list[int] = []

    @app.consumer("orders", retry=Retry(max_attempts=3, backoff=AT_ONCE))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        raise ConnectionError("always")

    told = Told(app)
    async with app:
        kept = app.backend
        ledger = OrderedLedger(
            broker=SaysOneForEver(kept.broker), claims=kept.claims, letters=kept.letters, jobs=kept.jobs,
            clock=app.clock,
        )  # fmt: skip
        object.__setattr__(kept, "ledger", ledger)
        async with working(app):
            await app.publish("orders", {"n": 1}, message_id="m-1")
            await told.until("delivery.dead_lettered")

            (letter,) = await letters(app)
            assert [1, 2, 3] == runs
            assert letter.attempt_count == 3
            assert await depth(app, "orders") == 0
            assert await depth(app, "orders.dead") == 1


async def test_messages_without_an_id_are_counted_each_for_itself(app: Redrive) -> None:
    runs: list[str] = []

    @app.consumer("orders", retry=Retry(max_attempts=3, backoff=AT_ONCE))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        runs.append(str(delivery.headers["who"]))
        if delivery.headers["who"] == "A":
            raise ConnectionError("A always fails")

    told = Told(app)
    async with working(app):
        for who in "AB":
            await app.publish("orders", {"n": 1}, headers={"who": who})
        await told.until("delivery.dead_lettered")
        await quiet(app, told, "orders")

        assert ["A", "A", "A", "B"] == sorted(runs)
        assert len(await letters(app)) == 1


async def test_a_count_survives_the_workers_that_made_it(app: Redrive) -> None:
    runs: list[int] = []

    @app.consumer("orders", retry=Retry(max_attempts=3, backoff=Fixed("200ms")))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        raise ConnectionError("down")

    told = Told(app)
    async with app:
        async with working(app):
            await app.publish("orders", {"n": 1})
            await told.until("delivery.retry_scheduled", 2)
        async with working(app):
            await told.until("delivery.dead_lettered")

    assert [1, 2, 3] == runs


async def test_a_retry_is_not_taken_for_a_duplicate(app: Redrive) -> None:
    runs: list[int] = []

    @app.consumer("orders", retry=Retry(max_attempts=2, backoff=AT_ONCE))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        if delivery.attempt == 1:
            raise ConnectionError("once")

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 7}, message_id="m-7")
        await told.until("deliveries.processed")
        await app.publish("orders", {"n": 7}, message_id="m-7")
        await told.until("delivery.duplicate")

    assert [1, 2] == runs


@pytest.mark.parametrize("how", ["redriven", "sent again"])
async def test_a_dead_message_that_comes_back_runs_again_and_a_further_copy_does_not(app: Redrive, how: str) -> None:
    runs: list[int] = []

    @app.consumer("orders", retry=Retry(max_attempts=1))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        if len(runs) == 1:
            raise ConnectionError("the first time")

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 7}, message_id="m-7")
        await told.until("delivery.dead_lettered")

        if how == "redriven":
            await redrive_all(app)
        else:
            await app.publish("orders", {"n": 7}, message_id="m-7")
        await told.until("deliveries.processed")
        await app.publish("orders", {"n": 7}, message_id="m-7")
        await told.until("delivery.duplicate")

        (letter,) = await letters(app)
        assert [1, 1] == runs
        assert ("closed" if how == "redriven" else "pending") == letter.state


async def test_a_redriven_message_that_fails_again_makes_a_new_linked_letter(app: Redrive) -> None:
    @app.consumer("orders", retry=Retry(max_attempts=2, backoff=AT_ONCE))
    async def handle(order: dict[str, Any]) -> None:
        raise ConnectionError("always")

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 7}, message_id="m-7")
        await told.until("delivery.dead_lettered")
        await redrive_all(app)
        await told.until("delivery.dead_lettered", 2)

        first, second = await letters(app)
        assert (2, 2) == (first.attempt_count, second.attempt_count)
        assert (0, 1) == (first.redrive_count, second.redrive_count)
        assert first.id == second.previous
        assert first.first_failed_at == second.first_failed_at
        assert ("replayed", "pending") == (first.state, second.state)


async def test_messages_without_a_usable_key_are_all_handled(app: Redrive) -> None:
    handled: list[int] = []

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        handled.append(order["n"])

    told = Told(app)
    async with working(app):
        for n, message_id in enumerate([None, "", "   ", "\t", "None"]):
            await app.publish("orders", {"n": n}, message_id=message_id)
        await app.publish("orders", {"n": 9}, message_id="None")
        await told.until("delivery.duplicate")
        await told.until("deliveries.processed", 5)
        await quiet(app, told, "orders")

    assert [0, 1, 2, 3, 4] == sorted(handled)
    assert 4 == sum(fields["without_key"] for fields in told.named("deliveries.taken"))
    assert ["None"] == [fields["key"] for fields in told.named("delivery.duplicate")]
