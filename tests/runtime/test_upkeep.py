"""What every worker does beside its handlers."""

from __future__ import annotations

from typing import Any

from redrive import Redrive, Retry
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.runtime.upkeep import Upkeep
from redrive.service import Service
from tests.runtime.stage import Told, letters, working


async def test_a_redrive_job_that_nobody_runs_is_taken_up_by_a_worker(app: Redrive) -> None:
    runs = []

    @app.consumer("orders", retry=Retry(max_attempts=1))
    async def handle(order: dict[str, Any]) -> None:
        runs.append(order["n"])
        if len(runs) == 1:
            raise ConnectionError("the first time")

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1}, message_id="m-1")
        await told.until("delivery.dead_lettered")
        await Service(app).redrive(Selection(queue="orders"), actor="test", run=False)
        await told.until("deliveries.processed")

        (letter,) = await letters(app)
        assert letter.state == "closed"


async def test_expired_claims_and_closed_letters_are_pruned_and_open_letters_stay(app: Redrive) -> None:
    @app.consumer("orders", retry=Retry(max_attempts=1), idempotency_ttl="1ms", letter_ttl="1ms")
    async def handle(order: dict[str, Any]) -> None:
        if order["n"] > 1:
            raise ConnectionError("always")

    told = Told(app)
    async with working(app, name="w"):
        for n in range(1, 4):
            await app.publish("orders", {"n": n}, message_id=f"m-{n}")
        await told.until("delivery.dead_lettered", 2)
        await told.until("deliveries.processed")
        first, second = await letters(app)
        await Service(app).review(Selection(ids=(first.id,)), ReviewState.CLOSED, actor="test")
        await told.until_holds(lambda: are_past_their_time(app, first), what="the times of both are over")

        await Upkeep(app.backend, app.clock, app.events, owner="w", interval_ms=1_000).prune()

        assert [second.id] == [letter.id for letter in await letters(app)]
        assert {"claims", "letters"} == {fields["what"] for fields in told.named("upkeep.pruned")}
        assert await app.backend.claims.get("orders", "m-1") is None


async def test_a_duty_that_fails_for_an_unknown_reason_is_told_and_stops_no_other(app: Redrive) -> None:
    @app.consumer("orders", retry=Retry(max_attempts=1))
    async def handle(order: dict[str, Any]) -> None:
        raise ConnectionError("always")

    told = Told(app)
    async with working(app):
        jobs = app.backend.jobs
        real, failures = jobs.acquire, iter([KeyError("a bug")])

        async def acquire(*arguments: Any, **named: Any) -> Any:
            for error in failures:
                raise error
            return await real(*arguments, **named)

        jobs.acquire = acquire  # type: ignore[method-assign]
        await told.until("upkeep.failed")
        await app.publish("orders", {"n": 1}, message_id="m-1")
        await told.until("delivery.dead_lettered")
        await Service(app).redrive(Selection(queue="orders"), actor="test", run=False)
        await told.until("delivery.dead_lettered", 2)

    (failed,) = told.named("upkeep.failed")
    assert {"duty": "resume_jobs", "error_text": "KeyError('a bug')"}.items() <= failed.items()


async def are_past_their_time(app: Redrive, letter: Letter) -> bool:
    """This letter and the claim of `m-1`; the worker's own upkeep may have pruned that by then."""
    record = await app.backend.claims.get("orders", "m-1")
    ends = [letter.expires_at, None if record is None else record.expires_at]
    return all(end is None or end < app.clock.now() for end in ends)
