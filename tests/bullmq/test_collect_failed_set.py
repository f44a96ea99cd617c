"""Walks through a failed set: what is left does not hide what comes behind it, and jobs that are odd harm nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive.brokers.bullmq import failed
from redrive.brokers.bullmq.broker import BullBroker
from redrive.core.letters.failed import failed_letter
from redrive.core.ports import FailedJob, Taking
from redrive.testing.samples import QUEUE
from tests.rabbitmq.by_hand import Shell
from tests.redis import Redis

AT = 1_700_000_000_000


def put(redis: Redis, job_id: str, *, at: int = AT, **fields: str | int) -> None:
    """A failed job, as a worker leaves it."""
    whole = {
        "name": "charge", "data": '{"n":1}', "opts": "{}", "timestamp": AT - 1, "finishedOn": at, "atm": 1,
        "failedReason": "declined", **fields,
    }  # fmt: skip
    pairs = [part for pair in whole.items() for part in pair]
    redis.ask("HSET", f"bull:{QUEUE}:{job_id}", *pairs)
    redis.ask("ZADD", f"bull:{QUEUE}:failed", at, job_id)


OWN = "own"


async def walk(broker: BullBroker, *, limit: int = 100) -> tuple[list[str], dict[str, int]]:
    """All that is shown, in order; and what is left."""
    shown: list[FailedJob] = []
    left: dict[str, int] = {}
    cursor = None
    for _ in range(100):
        page = await broker.failed.look(QUEUE, limit=limit, cursor=cursor)
        shown += page.jobs
        for why, count in [*page.left.items(), (OWN, page.own)]:
            left[why] = left.get(why, 0) + count
        cursor = page.cursor
        if cursor is None:
            return [each.message.id for each in shown], left
    raise AssertionError("the walk never ended")


@pytest.mark.parametrize(("looked_at", "limit"), [(3, 100), (500, 2), (1, 1), (500, 100)])
async def test_what_is_left_hides_nothing(
    redis: Redis, broker: BullBroker, monkeypatch: pytest.MonkeyPatch, *, looked_at: int, limit: int
) -> None:
    monkeypatch.setattr(failed, "MAX_LOOKED_AT", looked_at)
    for number in range(10):
        # All of one millisecond.
        put(redis, f"own-{number}", rdl=AT)
        put(redis, f"parent-{number}", parentKey="bull:parents:1")
    for number in range(5):
        put(redis, f"z-{number}")
        put(redis, f"later-{number}", at=AT + number + 1)
    redis.ask("ZADD", f"bull:{QUEUE}:failed", AT, "nobody")

    shown, left = await walk(broker, limit=limit)

    assert [*(f"z-{number}" for number in range(5)), *(f"later-{number}" for number in range(5))] == shown
    assert {OWN: 10, failed.LEFT[0]: 10, failed.LEFT[2]: 1} == left


async def test_a_walk_goes_on_where_the_job_it_stood_at_is_gone(redis: Redis, broker: BullBroker) -> None:
    for number in range(6):
        put(redis, f"z-{number}")

    first = await broker.failed.look(QUEUE, limit=2)
    assert [Taking.TAKEN] * 2 == await broker.failed.take(QUEUE, first.jobs)
    rest = await broker.failed.look(QUEUE, limit=9, cursor=first.cursor)

    assert [f"z-{number}" for number in range(2, 6)] == [each.message.id for each in rest.jobs]
    assert [Taking.GONE] * 2 == await broker.failed.take(QUEUE, first.jobs)


async def test_large_jobs_come_in_parts(redis: Redis, broker: BullBroker) -> None:
    for number in range(3):
        put(redis, f"z-{number}", data='"' + "x" * 3_000_000 + '"')

    first = await broker.failed.look(QUEUE, limit=9)

    assert (2, True) == (len(first.jobs), first.cursor is not None)
    assert 3 == len((await walk(broker))[0])


@pytest.mark.parametrize(
    "fields",
    [
        {"stacktrace": "no JSON"},
        {"stacktrace": '{"a":1}'},
        {"stacktrace": "[1,null]"},
        {"opts": "[]"},
        {"opts": "no JSON"},
        {"data": "no JSON"},
        {"atm": "many", "processedOn": "never", "finishedOn": "1e999"},
        {"failedReason": ""},
        {"name": ""},
    ],
)
async def test_an_odd_job_is_shown_taken_and_goes_back(
    redis: Redis, broker: BullBroker, fields: dict[str, str]
) -> None:
    put(redis, "odd", **fields)

    (job,) = (await broker.failed.look(QUEUE, limit=9)).jobs

    assert fields.get("data", '{"n":1}').encode() == job.message.body
    assert [Taking.TAKEN] == await broker.failed.take(QUEUE, [job])
    assert failed.options_in(job.message) == {}
    assert 0 == redis.ask("EXISTS", f"bull:{QUEUE}:odd")


@pytest.mark.parametrize("field", ["timestamp", "priority", "atm", "stc", "processedOn", "finishedOn"])
async def test_a_number_no_store_has_room_for_is_none(redis: Redis, broker: BullBroker, field: str) -> None:
    put(redis, "odd", **{field: 10**25})

    (job,) = (await broker.failed.look(QUEUE, limit=9)).jobs

    letter = failed_letter(job, queue=QUEUE, system="shop", now=AT)
    numbers = (job.message.published_at, job.message.priority or 0, letter.attempt_count, job.failed_at)
    assert all(0 <= number < 2**63 for number in numbers)
    assert letter.attempt_count < 2**31


async def test_another_job_under_the_id_is_not_the_one_that_was_seen(redis: Redis, broker: BullBroker) -> None:
    put(redis, "z")
    (job,) = (await broker.failed.look(QUEUE, limit=9)).jobs
    put(redis, "z", timestamp=AT)

    assert [Taking.GONE] == await broker.failed.take(QUEUE, [job])
    assert 1 == redis.ask("ZCARD", f"bull:{QUEUE}:failed")


def test_by_the_commands_of_the_manual(redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/how-to/collect.md, On Redis."""
    redis.ask("HSET", f"bull:{QUEUE}:meta", "version", "bullmq:5.0.0")
    put(redis, "z-1")
    put(redis, "z-2", parentKey="bull:parents:1")
    shell = Shell(tmp_path, monkeypatch)
    monkeypatch.setenv("REDRIVE_BROKER", redis.url)

    dry = shell.run("dlq", "collect", QUEUE, "--dry-run", "--json")
    shown = shell.run("dlq", "collect", QUEUE, "--dry-run")
    refused = shell.run("dlq", "collect", QUEUE, "--from", "elsewhere")
    done = shell.run("dlq", "collect", QUEUE)
    sent = shell.run("dlq", "redrive", QUEUE, "--yes", "--json")

    assert ([("z-1", "JOB_FAILED")], {failed.LEFT[0]: 1}) == (
        [(each["message_id"], each["reason_code"]) for each in dry.json["letters"]],
        dry.json["left"],
    )
    assert "1 message left alone: part of a flow" in shown.out + shown.err
    assert (2, True) == (refused.code, "Leave --from out" in refused.err)
    assert "1 message taken, 1 letter new in the store." in done.out
    assert (0, 1) == (sent.code, sent.json["job"]["sent"])
    assert [b"z-1"] == redis.ask("LRANGE", f"bull:{QUEUE}:wait", 0, -1)
    assert [b"z-2"] == redis.ask("ZRANGE", f"bull:{QUEUE}:failed", 0, -1)
