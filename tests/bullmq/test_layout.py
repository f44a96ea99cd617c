"""What lies in Redis is what BullMQ expects (cases BQ-01, BQ-03)."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from redrive.brokers.bullmq.broker import BullBroker
from redrive.brokers.bullmq.hoisting import as_function
from redrive.brokers.bullmq.scripts import load
from redrive.core import settlement
from redrive.core.ports import Received, Settle
from redrive.core.settlement import Reason
from redrive.errors import InvalidMessageError
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import QUEUE, attempt, outgoing
from tests.redis import Redis

WHY = Reason(code="TEST", text="it did not answer")
LEASE_MS = 30_000


async def take(broker: BullBroker, limit: int = 10) -> list[Received]:
    return await broker.receive(QUEUE, limit=limit, lease_ms=LEASE_MS, worker="w1", wait_ms=0)


def fields(redis: Redis, job_id: str) -> dict[str, str]:
    found = redis.ask("HGETALL", f"bull:{QUEUE}:{job_id}")
    return {name.decode(): value.decode() for name, value in zip(found[::2], found[1::2], strict=True)}


def retry(delay_ms: int = 0, **changes: Any) -> settlement.Retry:
    return settlement.Retry(due_at=SystemClock().now() + delay_ms, reason=WHY, **changes)


async def test_a_published_message_is_a_waiting_job(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing(tenant="t1")])

    job = fields(redis, "m-1")
    assert ('{"n": 1}', QUEUE, "0", "0") == (job["data"], job["name"], job["delay"], job["priority"])
    assert {"attempts": 0, "removeOnComplete": True, "removeOnFail": True} == json.loads(job["opts"])
    assert [b"m-1"] == redis.ask("LRANGE", f"bull:{QUEUE}:wait", 0, -1)
    assert [b"0", b"0"] == redis.ask("ZRANGE", f"bull:{QUEUE}:marker", 0, -1, "WITHSCORES")
    told = [entry[1][1] for entry in redis.ask("XRANGE", f"bull:{QUEUE}:events", "-", "+")]
    assert [b"added", b"waiting"] == told


async def test_a_priority_and_a_delay_are_scores(redis: Redis, broker: BullBroker) -> None:
    due_at = SystemClock().now() + 60_000
    await broker.publish([outgoing("urgent", priority=3), outgoing("later", due_at=due_at)])

    (_, score) = redis.ask("ZRANGE", f"bull:{QUEUE}:prioritized", 0, -1, "WITHSCORES")
    (_, due) = redis.ask("ZRANGE", f"bull:{QUEUE}:delayed", 0, -1, "WITHSCORES")
    assert 3 * 2**32 + 1 == int(score)
    assert abs(int(due) // 4_096 - due_at) <= 5
    assert 3 == json.loads(fields(redis, "urgent")["opts"])["priority"]


async def test_a_job_in_hand_is_active_locked_and_counted(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing()])

    await take(broker)

    job = fields(redis, "m-1")
    assert ("1", "redrive:w1") == (job["ats"], job["pb"])
    assert [b"m-1"] == redis.ask("LRANGE", f"bull:{QUEUE}:active", 0, -1)
    assert redis.ask("GET", f"bull:{QUEUE}:m-1:lock").startswith(b"redrive:")
    assert LEASE_MS - 5_000 < redis.ask("PTTL", f"bull:{QUEUE}:m-1:lock") <= LEASE_MS


async def test_a_retry_keeps_reason_trace_and_count_where_dashboards_look(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing()])
    (received,) = await take(broker)

    await broker.settle([Settle(lease=received.lease, settlement=retry(60_000), entry=attempt(1))])

    job = fields(redis, "m-1")
    assert ("1", WHY.text) == (job["atm"], job["failedReason"])
    assert json.loads(job["stacktrace"]) == [attempt(1).traceback]
    assert 1 == redis.ask("ZCARD", f"bull:{QUEUE}:delayed")
    assert 0 == redis.ask("EXISTS", f"bull:{QUEUE}:m-1:lock")


async def test_an_attempt_field_is_rewritten_in_the_stored_job(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing(body=b'{"attempt":1}')])
    (received,) = await take(broker)

    await broker.settle([Settle(lease=received.lease, settlement=retry(body=b'{"attempt":2}'))])

    assert '{"attempt":2}' == fields(redis, "m-1")["data"]
    (again,) = await take(broker)
    assert b'{"attempt":1}' == again.message.original_body


async def test_nothing_is_left_of_a_job_that_is_done(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing("a"), outgoing("b")])
    done, dead = await take(broker)

    await broker.settle([Settle(lease=done.lease, settlement=settlement.ACK)])
    await broker.settle([Settle(lease=dead.lease, settlement=settlement.DeadLetter(reason=WHY))])

    left = {key.decode() for key in redis.ask("KEYS", f"bull:{QUEUE}:*")}
    known = ("id", "meta", "events", "marker", "stalled-check", "redrive:workers")
    assert left <= {f"bull:{QUEUE}:{part}" for part in known}


async def test_ended_jobs_are_kept_where_the_url_says_so(redis: Redis, open_broker: Any) -> None:
    broker = await open_broker(keep_completed="true", keep_failed="true")
    await broker.publish([outgoing("a"), outgoing("b")])
    done, dead = await take(broker)

    await broker.settle([
        Settle(lease=done.lease, settlement=settlement.ACK),
        Settle(lease=dead.lease, settlement=settlement.DeadLetter(reason=WHY), entry=attempt(1)),
    ])  # fmt: skip

    assert [b"a"] == redis.ask("ZRANGE", f"bull:{QUEUE}:completed", 0, -1)
    assert [b"b"] == redis.ask("ZRANGE", f"bull:{QUEUE}:failed", 0, -1)
    assert WHY.text == fields(redis, "b")["failedReason"]
    assert "finishedOn" in fields(redis, "a")


async def test_a_job_that_failed_and_was_kept_runs_again_under_its_own_id(redis: Redis, open_broker: Any) -> None:
    """The trap of system E: BullMQ ignores a job whose id is still there."""
    broker = await open_broker(keep_completed="true", keep_failed="true")
    await broker.publish([outgoing("dead"), outgoing("done"), outgoing("waits")])
    dead, done = await take(broker, limit=2)
    await broker.settle([
        Settle(lease=dead.lease, settlement=settlement.DeadLetter(reason=WHY), entry=attempt(1)),
        Settle(lease=done.lease, settlement=settlement.ACK),
    ])  # fmt: skip

    await broker.publish([outgoing("dead"), outgoing("done"), outgoing("waits")])

    again = await take(broker)
    assert ["waits", "dead", "done~2", "waits~2"] == [received.position for received in again]
    assert ["waits", "dead", "done", "waits"] == [received.message.id for received in again]
    assert ([], 1) == (redis.ask("ZRANGE", f"bull:{QUEUE}:failed", 0, -1), again[1].starts)
    assert "failedReason" not in fields(redis, "dead")


async def test_bq01_nothing_is_half_written_after_a_refusal(redis: Redis, broker: BullBroker) -> None:
    with pytest.raises(InvalidMessageError, match="2097153"):
        await broker.publish([outgoing("fits"), outgoing("too-late", priority=2_097_153)])

    assert [] == redis.ask("KEYS", "bull:*")


async def test_bq01_an_id_that_is_a_number_is_never_mixed_with_nodes_own(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing("1"), outgoing("a:b")])

    assert [] == [key for key in redis.ask("KEYS", f"bull:{QUEUE}:*") if key in (b"bull:orders:1", b"bull:orders:a:b")]
    assert ["1", "a:b"] == [received.message.id for received in await take(broker)]


async def test_bq03_a_retry_and_a_due_job_go_by_their_priority(redis: Redis, broker: BullBroker) -> None:
    now = SystemClock().now()
    await broker.publish([
        outgoing("J1", priority=1), *(outgoing(f"J{n}", priority=5) for n in (2, 3, 4)),
        outgoing("J5", priority=1, due_at=now + 300),
    ])  # fmt: skip
    order: list[str] = []
    while len(order) < 6:
        if len(order) == 3:
            await asyncio.sleep(0.4)  # sleep: J5 falls due
        (received,) = await take(broker, limit=1)
        order.append(received.message.id)
        end = retry() if order == ["J1"] else settlement.ACK
        await broker.settle([Settle(lease=received.lease, settlement=end)])

    assert ["J1", "J1", "J2", "J5", "J3", "J4"] == order


async def test_a_job_of_somebody_else_is_read_and_left_as_it_is(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing("ours")])
    name = f"bull:{QUEUE}:7"
    redis.ask("HSET", name, "name", "order.created", "data", '{"b":1, "a":[]}', "opts", '{"attempts":3,"x":{}}',
              "timestamp", 1_700_000_000_000, "delay", 0, "priority", 0)  # fmt: skip
    redis.ask("LPUSH", f"bull:{QUEUE}:wait", "7")

    _, node = await take(broker)

    found = node.message
    assert ("7", b'{"b":1, "a":[]}', "order.created") == (found.id, found.body, found.properties.type)
    assert ("7@1700000000000", 1_700_000_000_000) == (found.key, found.published_at)
    assert node.retry is not None
    assert 3 == node.retry.max_attempts


async def test_a_publish_that_was_sent_twice_is_there_once(redis: Redis, broker: BullBroker) -> None:
    job = broker._job(outgoing(), "a-mark")
    keys = broker._names.keys(QUEUE)

    await broker._publish_part(keys, [job])
    await broker._publish_part(keys, [broker._job(outgoing(), "a-mark")])
    await broker._publish_part(keys, [broker._job(outgoing(), "another")])

    assert [b"m-1~2", b"m-1"] == redis.ask("LRANGE", f"bull:{QUEUE}:wait", 0, -1)
    assert ["m-1", "m-1"] == [received.message.id for received in await take(broker)]


async def test_what_was_handed_back_unstarted_comes_first_and_in_its_order(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing(f"m-{number}") for number in range(4)])
    first, second, third = await take(broker, limit=3)
    now = SystemClock().now()
    handed_back = settlement.Requeue(due_at=now, reason=Reason(code="SHUTDOWN", text="the worker stops"))
    sent_back = settlement.Requeue(due_at=now, reason=Reason(code="REQUEUED_BY_HANDLER", text="not yet"))

    ends = [(first, handed_back), (second, sent_back), (third, handed_back)]
    await broker.settle([Settle(lease=each.lease, settlement=end) for each, end in ends])

    again = await take(broker)
    assert ["m-0", "m-2", "m-3", "m-1"] == [received.message.id for received in again]
    assert [1, 1, 1, 1] == [received.starts for received in again]


async def test_large_bodies_go_and_come_in_parts(redis: Redis, broker: BullBroker) -> None:
    large = b'"%s"' % (b"x" * 3_000_000)

    await broker.publish([outgoing(f"m-{number}", body=large) for number in range(4)])
    taken = [len(await take(broker)) for _ in range(3)]

    assert [2, 2, 0] == taken


async def test_a_job_that_bullmq_wants_failed_for_its_stalls_is_run_and_counted(
    redis: Redis, broker: BullBroker
) -> None:
    await broker.publish([outgoing()])
    redis.ask("HSET", f"bull:{QUEUE}:m-1", "defa", "job stalled more than allowable limit", "stc", 2)

    (received,) = await take(broker)

    assert (3, True) == (received.starts, received.redelivered)
    assert "defa" not in fields(redis, "m-1")


# ------------------------------------------------------------------------------------ BullMQ's scripts in a batch


async def test_a_batch_does_once_what_is_alike_for_each_of_its_jobs(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing(f"m-{number}") for number in range(10)])
    redis.ask("CONFIG", "RESETSTAT")

    received = await take(broker)
    await broker.settle([Settle(lease=each.lease, settlement=settlement.Ack()) for each in received])

    calls = dict(re.findall(r"cmdstat_(\w+):calls=(\d+)", redis.ask("INFO", "commandstats").decode()))
    # Each job's start and end, and that all are done.
    assert ("10", "21") == (calls["rpoplpush"], calls["xadd"])
    # Once each; and what the fleet does meanwhile.
    assert max(int(calls[name]) for name in ("zadd", "zrangebyscore", "xtrim", "hmget")) < 14
    assert int(calls["xtrim"]) < 5
    assert int(calls["zadd"]) < 5


SCRIPT = """--[[ What it does. ]]
local rcall = redis.call
local key = KEYS[1]
local function doubled(number)
  return number * 2
end
local function kept(
  number)
  return rcall("SET", key, doubled(number))
end
kept(ARGV[1])
local found = rcall("GET", key)
return tonumber(found)
"""


def test_a_script_of_the_package_is_a_function_whose_helpers_are_made_once(redis: Redis) -> None:
    made = as_function("script", SCRIPT)

    answer = redis.ask("EVAL", f'{made} return {{ script({{"a"}}, {{3}}), script({{"b"}}, {{4}}) }}', 0)

    assert [6, 8] == answer
    # The second names a local of the script, so it is made for each call.
    assert made.index("function doubled") < made.index("made_script = function") < made.index("function kept")


def test_no_helper_of_the_package_is_left_behind_on_the_hot_path() -> None:
    texts = load()
    for text, name in ((texts.take.text, "moveToActive"), (texts.settle.text, "moveToFinished")):
        body = text.partition(f"made_{name} = function")[2].partition(f"return made_{name}(")[0]
        assert "function" not in body
