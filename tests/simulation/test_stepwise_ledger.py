"""The stepwise ledger, cut off between any two of its steps: a duplicate may be left behind, never a hole (case DS-01,
DS-02, DS-03, RD-02).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

import pytest

from redrive.core.idempotency import ClaimState
from redrive.core.letters.letter import ReviewState
from redrive.core.ports import Outgoing
from redrive.core.redrive import Job, JobState
from redrive.errors import BrokerUnavailableError
from redrive.testing import Faults, Killed
from redrive.testing.samples import QUEUE, message, outgoing
from tests.simulation.stepwise_world import DEAD, LEASE_MS, World

NAMES = ("ok-1", "flaky-1", "poison-1", "busy-1", "ok-2")
POISON = tuple(f"poison-{number}" for number in range(10))


def batch(keyed: bool) -> list[Outgoing]:
    return [Outgoing(queue=QUEUE, message=message(name, key=name if keyed else None)) for name in NAMES]


async def published(keyed: bool, *, connected: bool = False) -> World:
    world = World(connected=connected)
    await (await world.process()).publish(batch(keyed))
    world.faults.calls.clear()
    return world


async def check_nothing_lost(world: World, *, hurt: set[str], keyed: bool) -> None:
    """Each message ended; only what was in hand when it happened may have run twice."""
    assert await world.waiting() == 0
    dead = Counter(found.message.id for found in await world.dead())
    for name in NAMES:
        if name.startswith("poison"):
            assert dead[name] >= 1, name
            assert world.effects[name] == 0, name
        else:
            assert dead[name] == 0, name
            assert world.effects[name] >= 1, name
        assert name in hurt or world.effects[name] + dead[name] == 1, (name, world.effects, dead)
        if keyed:
            record = await world.claims.get(QUEUE, name)
            assert record is not None
            expected = ClaimState.DEAD_LETTERED if name.startswith("poison") else ClaimState.PROCESSED
            assert record.state is expected, name


@pytest.mark.parametrize("connected", [False, True], ids=["leases", "connections"])
@pytest.mark.parametrize("keyed", [True, False], ids=["with keys", "without keys"])
async def test_a_worker_killed_before_any_of_its_calls_loses_nothing(keyed: bool, connected: bool) -> None:
    world = await published(keyed, connected=connected)
    await world.work()
    await check_nothing_lost(world, hurt=set(), keyed=keyed)
    steps = len(world.faults.calls)

    for step in range(steps):
        world = await published(keyed, connected=connected)
        world.faults.kill_before(step)
        with pytest.raises(Killed):
            await world.work()
        hurt = set(world.in_hand)

        world.faults.stop()
        await world.clock.advance(LEASE_MS)
        await world.work()

        await check_nothing_lost(world, hurt=hurt, keyed=keyed)


@pytest.mark.parametrize("keyed", [True, False], ids=["with keys", "without keys"])
@pytest.mark.parametrize("fault", [Faults.fail_at, Faults.lose_at], ids=["fails", "loses its answer"])
async def test_a_call_that_fails_or_loses_its_answer_loses_nothing(
    keyed: bool, fault: Callable[[Faults, int], None]
) -> None:
    world = await published(keyed)
    await world.work()
    steps = len(world.faults.calls)

    for step in range(steps):
        world = await published(keyed)
        fault(world.faults, step)

        await world.work()

        # Nobody died, so with keys nothing ran twice; without, an answer lost after a receive costs a lease.
        await check_nothing_lost(world, hurt=set(), keyed=keyed)


@pytest.mark.parametrize("seed", range(10))
async def test_under_a_storm_of_faults_each_effect_happens_once(seed: int) -> None:
    world = World(seed=seed)
    names = [f"{kind}-{number}" for kind in ("ok", "flaky", "busy") for number in range(20)]
    await (await world.process()).publish([outgoing(name) for name in names])
    for name in ("broker.receive", "broker.publish", "broker.settle", "claims.claim", "claims.finish", "claims.get"):
        world.faults.at_random(name, fail=0.1, lose=0.1)

    await world.work()

    assert dict.fromkeys(names, 1) == dict(world.effects), f"seed {seed}"
    assert await world.waiting() == 0


# --------------------------------------------------------------------------------------------------- redrive


async def with_dead_letters() -> World:
    world = World()
    await (await world.process()).publish([outgoing(name) for name in POISON])
    await world.work()
    assert len(await world.open_letters()) == await world.waiting(DEAD) == len(POISON)
    world.heals = True
    world.faults.calls.clear()
    return world


async def check_redriven(world: World) -> None:
    """Every letter was sent, took effect once, and nothing is left over."""
    assert dict.fromkeys(POISON, 1) == dict(world.effects)
    assert {ReviewState.CLOSED} == await world.states()
    assert await world.waiting() == 0
    assert await world.waiting(DEAD) == 0
    assert {None} == {found.outstanding_job for found in await world.dead()}
    stored = await world.jobs.get("job-1")
    assert stored is not None
    assert (JobState.DONE, 10, 0, 0) == (
        stored.state, stored.counts.sent, stored.counts.pending, stored.counts.skipped,
    )  # fmt: skip


@pytest.mark.parametrize("consumes_meanwhile", [False, True], ids=["copies wait", "copies are processed at once"])
@pytest.mark.parametrize(
    ("fault", "error"),
    [(Faults.kill_before, Killed), (Faults.fail_at, BrokerUnavailableError), (Faults.lose_at, BrokerUnavailableError)],
    ids=["killed", "fails", "loses its answer"],
)
async def test_a_redrive_cut_off_at_any_call_goes_on_and_each_effect_happens_once(
    fault: Callable[[Faults, int], None], error: type[BaseException], consumes_meanwhile: bool
) -> None:
    world = await with_dead_letters()
    await world.redrive()
    steps = len(world.faults.calls)
    await world.work()
    await check_redriven(world)

    for step in range(steps):
        world = await with_dead_letters()
        fault(world.faults, step)
        # A publish that fails is repeated one by one, so not every fault is seen outside.
        with contextlib.suppress(error):
            await world.redrive()
        world.faults.stop()
        if consumes_meanwhile:
            await world.work()

        stored = await world.jobs.get("job-1")
        if stored is None or stored.state is not JobState.DONE:
            await world.clock.advance(LEASE_MS)
            await world.redrive()
        await world.work()

        await check_redriven(world)


async def test_a_letter_the_target_refuses_stays_dead_and_the_others_are_sent() -> None:
    world = await with_dead_letters()
    world.faulty_broker.refuse(lambda sent: sent.message.id == "poison-3" and sent.queue == QUEUE)
    await world.redrive()
    await world.work()
    (left,) = await world.open_letters()

    world.faulty_broker.refuse(lambda _: False)
    await world.redrive("job-2")
    await world.work()

    assert "poison-3" == left.message.id
    assert left.outstanding_job is None
    items = await world.jobs.items("job-1", state="skipped", limit=10)
    assert [left.id] == [item.letter_id for item in items]
    assert "refused" in (items[0].why or "")
    assert dict.fromkeys(POISON, 1) == dict(world.effects)
    assert await world.waiting(DEAD) == 0


@pytest.mark.parametrize("cut_off", [Faults.fail_next, Faults.lose_next], ids=["before", "after"])
async def test_an_entry_whose_drop_was_cut_off_goes_when_its_job_is_resumed(
    cut_off: Callable[[Faults, str], None],
) -> None:
    world = await with_dead_letters()
    cut_off(world.faults, "broker.discard")
    with pytest.raises(BrokerUnavailableError):
        await world.redrive()

    await world.jobs.save(await running_job(world), lease_ms=0)
    await world.redrive()
    left = await world.waiting(DEAD)
    await world.work()

    assert 0 == left
    await check_redriven(world)


async def running_job(world: World) -> Job:
    stored = await world.jobs.get("job-1")
    assert stored is not None
    return stored


# ------------------------------------------------------------------------------------------------ delivery safety


async def test_messages_that_cannot_be_claimed_are_handed_back_at_once_and_cost_nothing() -> None:
    world = World()
    await (await world.process()).publish([outgoing("ok-1")])
    world.faults.fail_next("claims.claim")
    ledger = await world.process()

    with pytest.raises(BrokerUnavailableError):
        await ledger.take(QUEUE, limit=10, lease_ms=LEASE_MS, worker="w", wait_ms=0, claims=True)
    (taken,) = await ledger.take(QUEUE, limit=10, lease_ms=LEASE_MS, worker="w", wait_ms=0, claims=True)

    assert 1 == taken.received.starts
    assert () == taken.received.history


async def test_a_retry_that_cannot_be_stored_is_not_lost_and_runs_as_attempt_two() -> None:
    world = World()
    await (await world.process()).publish([outgoing("flaky-1")])
    world.faults.fail_next("broker.settle", times=2)

    await world.work()

    assert {"flaky-1": 1} == dict(world.effects)
    assert {"flaky-1": 2} == dict(world.runs)
    assert await world.waiting() == 0


async def test_a_dead_letter_queue_that_takes_nothing_keeps_the_message_in_its_queue() -> None:
    world = World()
    await (await world.process()).publish([outgoing("poison-1")])
    world.faulty_broker.refuse(lambda sent: sent.queue == DEAD)

    with pytest.raises(AssertionError, match="never succeeded"):
        await world.work()
    kept = await world.waiting(), await world.waiting(DEAD)
    world.faulty_broker.refuse(lambda _: False)
    await world.clock.advance(LEASE_MS)
    await world.work()

    assert (1, 0) == kept
    assert (0, 1) == (await world.waiting(), await world.waiting(DEAD))
    assert 1 == len(await world.dead())


@pytest.mark.parametrize("fault", ["fail_next", "lose_next"])
async def test_publishes_repeated_after_an_outage_leave_each_message_once_by_id(fault: str) -> None:
    world = World()
    ledger = await world.process()
    names = [f"p{number}" for number in range(1, 11)]
    getattr(world.faults, fault)("broker.publish", times=len(names))
    for name in names:
        with pytest.raises(BrokerUnavailableError):
            await ledger.publish([outgoing(name)])

    for name in names:
        await ledger.publish([outgoing(name)])

    waiting = [found.id for found in await world.broker.peek(QUEUE, limit=100)]
    assert set(names) == set(waiting)
    assert (10 if fault == "fail_next" else 20) == len(waiting)


@pytest.mark.parametrize("step", range(4))
async def test_a_gateway_killed_between_queueing_and_recording_leaves_one_run(step: int) -> None:
    world = World()
    once = Outgoing(queue=QUEUE, message=message("ok-1"), once=True, digest="a" * 64)
    world.faults.kill_before(step)
    with contextlib.suppress(Killed):
        await (await world.process()).publish([once])
    world.faults.stop()

    await (await world.process()).publish([once])
    await world.work()
    (repeated,) = await (await world.process()).publish([once])

    assert {"ok-1": 1} == dict(world.effects)
    assert repeated.duplicate
