"""AutoRedrive: letters of a passing cause go back by themselves, those of people's business do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import AutoRedrive, ConfigurationError
from redrive.core.letters.groups import GroupState
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.redrive import JobState
from redrive.core.settlement import Reason
from redrive.runtime.app import Redrive
from redrive.runtime.auto_redrive import ACTOR, AutoRedriver
from redrive.service import Service
from redrive.testing.clock import FakeClock
from redrive.testing.samples import QUEUE, letter, message

POLICY = AutoRedrive(error_code="TIMEOUT", after="10m", canary=2)
MINUTE = 60_000


def auto(app: Redrive, policy: AutoRedrive = POLICY) -> AutoRedriver:
    return AutoRedriver(app.backend, app.clock, app.events, policies=[policy])


async def fill(app: Redrive, names: str, **changes: Any) -> None:
    now = app.clock.now()
    await app.backend.letters.put(
        [letter(f"dl_{name}", died_at=now, message=message(f"m-{name}"), **changes) for name in names]
    )


@pytest.mark.asyncio
async def test_letters_go_back_after_their_time_in_an_ordinary_job(
    app: Redrive, service: Service, clock: FakeClock
) -> None:
    await fill(app, "abc")
    await fill(app, "x", error_code="VALIDATION_FAILED")
    await auto(app).look()
    assert await service.jobs() == ()
    await clock.advance(11 * MINUTE)

    await auto(app).look()

    (job,) = await service.jobs()
    assert (JobState.STAGED, ACTOR, ("dl_a", "dl_b", "dl_c")) == (job.state, job.actor, job.selection.ids)
    assert (2, 1, 10.0) == (job.options.canary, job.options.max_redrives, job.options.rate_per_s)


@pytest.mark.asyncio
async def test_of_all_workers_that_look_at_once_one_makes_the_job(
    app: Redrive, service: Service, clock: FakeClock
) -> None:
    await fill(app, "abc")
    await clock.advance(11 * MINUTE)

    await asyncio.gather(*(auto(app).look() for _ in range(5)))

    assert len(await service.jobs()) == 1


@pytest.mark.asyncio
async def test_what_is_a_persons_business_is_left_alone(app: Redrive, service: Service, clock: FakeClock) -> None:
    await fill(app, "a", fingerprint="fp-ignored")
    await fill(app, "b", fingerprint="fp-acknowledged")
    await fill(app, "c", redrive_count=1)
    await fill(app, "d", reason=Reason(code="QUARANTINED", text="set aside"))
    await fill(app, "e")
    await service.change_group("fp-ignored", actor="ann", to=GroupState.IGNORED)
    await service.change_group("fp-acknowledged", actor="ann", to=GroupState.ACKNOWLEDGED)
    await service.review(Selection(ids=("dl_e",)), ReviewState.REVIEWED, actor="ann")
    await clock.advance(11 * MINUTE)

    await auto(app).look()

    assert await service.jobs() == ()


@pytest.mark.asyncio
async def test_what_a_job_holds_is_not_asked_for_again(app: Redrive, service: Service, clock: FakeClock) -> None:
    await fill(app, "ab")
    await clock.advance(11 * MINUTE)
    await service.redrive(Selection(queue=QUEUE, states=frozenset({ReviewState.PENDING})), actor="ann", run=False)
    held = await app.backend.jobs.acquire(None, owner="w", lease_ms=1_000_000)
    assert held is not None
    await app.backend.jobs.stage(held, limit=10)

    await auto(app).look()

    assert len(await service.jobs()) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"after": "10m"}, "which letters"),
        ({"after": 0, "queue": "orders"}, "after is 0"),
        ({"after": "10m", "queue": "orders", "canary": 0}, "canary is 0"),
        ({"after": "10m", "queue": "orders", "max_times": 0}, "max_times is 0"),
        ({"after": "10m", "queue": "orders", "rate": 0}, "rate is 0"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        AutoRedrive(**given)
