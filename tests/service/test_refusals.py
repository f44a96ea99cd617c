"""What a redrive refuses for what does not stand in the letter: a key nobody remembers, and who waits before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.ports import ClaimEnd, ReviewChange
from redrive.core.redrive import Item, ItemState, Job, JobCounts, JobOptions, JobState, sent_note
from redrive.core.refusals import RefusalCode
from redrive.runtime.app import Redrive
from redrive.runtime.auto_redrive import AutoRedriver
from redrive.runtime.redriver import Redriver
from redrive.service import JobView, Service
from redrive.testing.clock import FakeClock
from redrive.testing.samples import QUEUE, letter, message
from tests.service.conftest import DIED_AT, put_letters, states, waiting
from tests.service.test_auto_redrive import POLICY

ALL = Selection(queue=QUEUE)
DAY = 86_400_000
FORGOTTEN, OUT_OF_ORDER = RefusalCode.DEDUP_EXPIRED, RefusalCode.OUT_OF_ORDER


async def put_of_keys(app: Redrive, keys: str, **changes: object) -> None:
    """dl_1, dl_2, …: a letter for each of these one-letter keys ("-": none), dead one after the other."""
    await app.backend.letters.put(
        [
            letter(
                f"dl_{number}",
                died_at=DIED_AT + number,
                message=message(f"m-{number}", key=None if key == "-" else key),
                **changes,
            )
            for number, key in enumerate(keys, 1)
        ]
    )


def these(*numbers: int) -> Selection:
    return Selection(ids=tuple(f"dl_{number}" for number in numbers))


def whys(view: JobView) -> dict[str, str]:
    return {skip.letter_id: skip.why for skip in view.skipped}


async def staged_by_one_who_dies(app: Redrive, service: Service, clock: FakeClock, selection: Selection) -> Job:
    """A job that is staged and has sent nothing, and whose runner is gone."""
    view = await service.redrive(selection, actor="ann", run=False)
    taken = await app.backend.jobs.acquire(view.job.id, owner="gone", lease_ms=1_000)
    assert taken is not None
    await app.backend.jobs.stage(taken, limit=100)
    await clock.advance(2_000)
    return view.job


async def go_on(app: Redrive, service: Service, job: Job) -> JobView:
    await Redriver(app.backend, app.clock, app.events, consumers=app.consumers).run(None, owner="heir")
    return await service.job(job.id)


# ----------------------------------------------------------------------------------------------------- forgotten keys


async def test_a_letter_whose_key_is_forgotten_is_sent_only_when_told(
    app: Redrive, service: Service, clock: FakeClock
) -> None:
    await put_letters(app, 2)
    await app.backend.letters.put([letter("dl_none", died_at=DIED_AT, message=message("m-none", key=None))])
    await clock.advance(7 * DAY + DIED_AT - clock.now() + 2)

    plan = await service.plan(ALL)
    refused = await service.redrive(ALL, actor="ann")
    forced = await service.redrive(ALL, JobOptions(force=True), actor="ann")
    told = await service.redrive(ALL, JobOptions(even_if=(FORGOTTEN,)), actor="ann")

    assert (2, 1, {"dedup-expired": 1}) == (plan.send, plan.skip, plan.refusals)
    assert (2, {"dedup-expired": 1}) == (refused.job.counts.sent, refused.refusals)
    assert {"dl_0001"} == set(whys(refused))
    assert '"orders" remembers one for 7 d' in whys(refused)["dl_0001"]
    assert 0 == forced.job.counts.sent
    assert (1, {}) == (told.job.counts.sent, told.refusals)


async def test_where_nothing_is_staged_nothing_else_is_judged(app: Redrive, service: Service) -> None:
    """Letters of one key lie open beside it: none of them is this job's."""
    await put_of_keys(app, "aab")

    nobody = await service.redrive(Selection(queue=QUEUE, tenant="nobody"), actor="ann")

    assert (JobState.DONE, 0, {}) == (nobody.job.state, nobody.job.counts.selected, nobody.refusals)


async def test_a_collected_letter_goes_to_whoever_consumes_there_and_was_never_known_to_us(
    app: Redrive, service: Service, clock: FakeClock
) -> None:
    """No consumer of redrive's had its key; one of this app may have, or will."""
    names = ("dl_x_elsewhere", "dl_x_here", "dl_0_elsewhere")
    await app.backend.letters.put(
        [
            letter(
                name, died_at=DIED_AT, queue="theirs" if "elsewhere" in name else QUEUE, message=message(f"m-{name}")
            )
            for name in names
        ]
    )
    await clock.advance(7 * DAY + DIED_AT - clock.now() + 2)

    plan = await service.plan(Selection(ids=names))

    assert {"dl_x_here", "dl_0_elsewhere"} == {skip.letter_id for skip in plan.skipped}
    assert {"dedup-expired": 2} == plan.refusals


async def test_a_letter_whose_key_still_stands_is_sent_however_old(
    app: Redrive, service: Service, clock: FakeClock
) -> None:
    await put_of_keys(app, "ab")
    (verdict,) = await app.backend.claims.claim([(QUEUE, "a")], lease_ms=1_000, owner="w")
    assert isinstance(verdict, Acquired)
    await app.backend.claims.finish([ClaimEnd(ref=verdict.ref, state=ClaimState.DEAD_LETTERED)])
    await clock.advance(100 * DAY)

    view = await service.redrive(ALL, actor="ann")

    assert {"dl_2"} == set(whys(view))
    assert ["m-1"] == await waiting(app)


async def test_a_key_is_looked_for_where_the_copy_goes(app: Redrive, service: Service, clock: FakeClock) -> None:
    @app.consumer("hourly", idempotency_ttl="1h")
    async def hourly(order: dict) -> None: ...

    @app.consumer("careless", idempotency=False, idempotency_ttl="1h")
    async def careless(order: dict) -> None: ...

    for queue in ("hourly", "careless"):
        await app.backend.broker.receive(queue, limit=1, lease_ms=1_000, worker="w0", wait_ms=0)
    await put_of_keys(app, "abc")
    await clock.advance(2 * 3_600_000 + DIED_AT - clock.now())

    hourly_view = await service.redrive(these(1), JobOptions(target_queue="hourly"), actor="ann")
    careless_view = await service.redrive(these(2), JobOptions(target_queue="careless"), actor="ann")
    own = await service.redrive(these(3), actor="ann")

    assert [0, 1, 1] == [view.job.counts.sent for view in (hourly_view, careless_view, own)]
    assert '"hourly" remembers one for 1 h' in whys(hourly_view)["dl_1"]


async def test_a_key_that_is_forgotten_between_staging_and_sending_is_seen(
    app: Redrive, service: Service, clock: FakeClock
) -> None:
    await put_letters(app, 1)
    job = await staged_by_one_who_dies(app, service, clock, ALL)
    await clock.advance(8 * DAY)

    view = await go_on(app, service, job)

    assert (JobState.DONE, 0, {"dedup-expired": 1}) == (view.job.state, view.job.counts.sent, view.refusals)
    assert [] == await waiting(app)
    page = await app.backend.letters.find(ALL, limit=10)
    assert [None] == [each.outstanding_job for each in page.letters]


# ----------------------------------------------------------------------------------------------------- order of a key


async def test_a_letter_does_not_overtake_an_earlier_one_of_its_key(app: Redrive, service: Service) -> None:
    await put_of_keys(app, "ab-ab-")

    plan = await service.plan(these(3, 4, 5, 6))
    view = await service.redrive(these(3, 4, 5, 6), actor="ann")
    told = await service.redrive(these(4), JobOptions(even_if=(OUT_OF_ORDER,)), actor="ann")
    rest = await service.redrive(ALL, actor="ann")

    assert {"out-of-order": 2} == plan.refusals == view.refusals
    assert {skip.letter_id: skip.why for skip in plan.skipped} == whys(view)
    assert {"dl_4": "dl_1", "dl_5": "dl_2"} == {
        name: why.split(": ")[1].split(".")[0] for name, why in whys(view).items()
    }
    assert [2, 1, 3] == [each.job.counts.sent for each in (view, told, rest)]
    assert {} == rest.refusals


async def test_what_is_refused_is_known_before_anything_is_sent(app: Redrive, service: Service) -> None:
    await put_of_keys(app, "ab-ab-")
    seen: list[JobCounts] = []

    await service.redrive(these(3, 4, 5), actor="ann", on_progress=lambda job: seen.append(job.counts))

    assert JobCounts(selected=3, pending=1, skipped=2) in seen
    assert JobCounts(selected=3, sent=1, skipped=2) == seen[-1]


async def test_what_the_job_sends_itself_goes_before(app: Redrive, service: Service) -> None:
    await put_of_keys(app, "aaaa")

    plan = await service.plan(these(1, 2, 4))
    view = await service.redrive(these(1, 2, 4), actor="ann")

    assert (2, {"out-of-order": 1}) == (plan.send, plan.refusals)
    assert (2, {"out-of-order": 1}) == (view.job.counts.sent, view.refusals)
    assert "dl_3" in whys(view)["dl_4"]


async def test_what_is_refused_holds_up_the_later_ones_of_its_key(app: Redrive, service: Service) -> None:
    await put_of_keys(app, "a", redrive_count=3)
    await put_of_keys(app, "aaba")

    plan = await service.plan(ALL)
    view = await service.redrive(ALL, actor="ann")

    assert {"out-of-order": 2, "redriven-often": 1} == plan.refusals == view.refusals
    assert ["m-3"] == await waiting(app)


async def test_a_letter_whose_edit_does_not_fit_holds_up_the_later_ones_of_its_key(
    app: Redrive, service: Service
) -> None:
    await app.backend.letters.put(
        [
            letter(f"dl_{number}", died_at=DIED_AT + number, message=message(f"m-{number}", key=key, body=body))
            for number, key, body in ((1, "a", b"no JSON"), (2, "a", b'{"n": 1}'), (3, "b", b'{"n": 1}'))
        ]
    )
    options = JobOptions(edit='[{"op": "replace", "path": "/n", "value": 2}]')

    plan = await service.plan(ALL, options)
    view = await service.redrive(ALL, options, actor="ann")

    assert {"edit": 1, "out-of-order": 1} == plan.refusals == view.refusals
    assert ["dl_3"] == [edited.letter_id for edited in plan.edits]
    assert ["m-3"] == await waiting(app)


async def test_a_letter_that_is_open_again_when_its_job_goes_on_is_seen(
    app: Redrive, service: Service, clock: FakeClock
) -> None:
    await put_of_keys(app, "aa")
    await service.review(these(1), ReviewState.CLOSED, actor="ann")
    job = await staged_by_one_who_dies(app, service, clock, these(2))
    await service.review(these(1), ReviewState.PENDING, actor="ann")

    view = await go_on(app, service, job)

    assert (0, {"out-of-order": 1}) == (view.job.counts.sent, view.refusals)
    assert [] == await waiting(app)
    assert ReviewState.PENDING == (await states(app))["dl_2"]


async def test_what_was_sent_before_its_runner_was_killed_counts_as_sent(clock: FakeClock) -> None:
    async with Redrive("shop", "memory://", clock=clock) as app:
        service = Service(app)
        await app.backend.broker.receive(QUEUE, limit=1, lease_ms=1_000, worker="w0", wait_ms=0)
        await put_of_keys(app, "aa")
        await service.review(these(1), ReviewState.CLOSED, actor="ann")
        job = await staged_by_one_who_dies(app, service, clock, these(2))
        change = ReviewChange(
            letter_id="dl_2", to=ReviewState.REPLAYED, actor="ann", at=clock.now(), note=sent_note(job.id)
        )
        assert [None] == await app.backend.letters.review([change])
        await service.review(these(1), ReviewState.PENDING, actor="ann")

        view = await go_on(app, service, job)

        assert (1, {}) == (view.job.counts.sent, view.refusals)
        assert [] == await app.backend.jobs.items(job.id, state=ItemState.SKIPPED, limit=10)


async def test_a_policy_makes_no_job_of_what_it_would_refuse(app: Redrive, service: Service, clock: FakeClock) -> None:
    await put_of_keys(app, "a", error_code="VALIDATION_FAILED")
    await put_of_keys(app, "aa")
    await clock.advance(3_600_000)
    auto = AutoRedriver(app.backend, app.clock, app.events, policies=[POLICY], consumers=app.consumers)

    await auto.look()
    assert () == await service.jobs()
    await service.review(these(1), ReviewState.CLOSED, actor="ann")
    await auto.look()

    (job,) = await service.jobs()
    assert ("dl_2",) == job.selection.ids


class Counting:
    """A job store that counts how often it is asked for items."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def items(self, *given: Any, **named: Any) -> list[Item]:
        self.asked += 1
        return await self._real.items(*given, **named)


async def test_who_follows_a_job_counts_its_refusals_once(app: Redrive, service: Service) -> None:
    await put_of_keys(app, "ab", redrive_count=3)
    job = (await service.redrive(ALL, actor="ann")).job
    other = (await service.redrive(these(1), actor="ann")).job
    app._backend = replace(app.backend, jobs=Counting(app.backend.jobs))

    views = [await service.job(each.id) for each in (job, job, job, other, job)]

    assert 3 == app.backend.jobs.asked
    assert [{"redriven-often": count} for count in (2, 2, 2, 1, 2)] == [view.refusals for view in views]


# ----------------------------------------------------------------------------------------------------- the plan


async def test_a_plan_says_whether_the_target_is_there(app: Redrive, service: Service) -> None:
    await put_of_keys(app, "a")
    await app.backend.letters.put([letter("dl_b", died_at=DIED_AT, queue="nowhere", dead_letter_queue="nowhere.dead")])

    plan = await service.plan(Selection())
    aside = await service.plan(Selection(), JobOptions(target_queue="aside"))

    assert {QUEUE: True, "nowhere": False} == {each.queue: each.target_exists for each in plan.queues}
    assert {("aside", False)} == {(each.target, each.target_exists) for each in aside.queues}


@pytest_asyncio.fixture
async def full(app: Redrive) -> AsyncIterator[Redrive]:
    """More letters than one page of anything: 1 200 of four keys, of which the first of each may not be sent."""
    await put_of_keys(app, "abcd", redrive_count=3)
    await app.backend.letters.put(
        [
            letter(
                f"dl_{number}",
                died_at=DIED_AT + number,
                message=message(f"m-{number}", key="abcd"[number % 4] if number % 2 else f"own-{number}"),
            )
            for number in range(5, 1_205)
        ]
    )
    yield app


@pytest.mark.parametrize("even_if", [(), (OUT_OF_ORDER,)], ids=["refused", "told"])
async def test_plan_and_job_agree_over_many_pages(
    full: Redrive, service: Service, even_if: tuple[RefusalCode, ...]
) -> None:
    options = JobOptions(even_if=even_if)

    plan = await service.plan(ALL, options)
    view = await service.redrive(ALL, options, actor="ann")

    refused = {"redriven-often": 4} if even_if else {"out-of-order": 600, "redriven-often": 4}
    assert refused == plan.refusals == view.refusals
    assert plan.send == view.job.counts.sent == (1_200 if even_if else 600)
