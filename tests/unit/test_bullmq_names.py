"""Names, ids and slots of BullMQ's keys (cases BQ-01, BQ-07), and its retry options (case BQ-02)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import Decorrelated, Exponential, Fixed, Retry, Tiers
from redrive.brokers.bullmq.jobs import body_of, is_json, stored_body
from redrive.brokers.bullmq.keys import Names, check_job_id, check_queue, id_problem, job_id_of, keys_of, physical
from redrive.brokers.bullmq.retrying import options_of, retry_of
from redrive.errors import ConfigurationError, InvalidMessageError
from redrive.redis.slots import has_tag, slot_of
from redrive.testing.samples import HARD_BODIES, message

PARTS = (
    "wait", "active", "delayed", "prioritized", "completed", "failed", "events", "meta", "id", "stalled", "limiter",
    "7", "7:lock", "redrive:workers", "redrive:suspects", "metrics:completed",
)  # fmt: skip


@pytest.mark.parametrize("name", ["mail", "a b", "{mail}", "naïve-Ω"])
def test_bq01_a_queue_may_be_called_so(name: str) -> None:
    check_queue(name)

    assert keys_of("bull", name)["wait"] == f"bull:{name}:wait"


@pytest.mark.parametrize("name", ["mail:eu", ""])
def test_bq01_a_queue_may_not_be_called_so(name: str) -> None:
    with pytest.raises(ConfigurationError, match="BullMQ queue"):
        check_queue(name)


@pytest.mark.parametrize("job_id", ["abc", "00123", "a:b:c", "x" * 300, "a b"])
def test_bq01_a_job_may_have_this_id(job_id: str) -> None:
    assert job_id == check_job_id(job_id)


@pytest.mark.parametrize("job_id", ["123", "0", "-5", "a:b", "a:b:c:d", ""])
def test_bq01_a_job_may_not_have_this_id(job_id: str) -> None:
    with pytest.raises(InvalidMessageError, match="not sent"):
        check_job_id(job_id)


@given(st.text(max_size=40))
def test_bq01_whatever_a_message_is_called_its_job_has_an_id_that_is_allowed_and_no_number(name: str) -> None:
    found = job_id_of(message(name))

    assert id_problem(found) is None
    assert found == job_id_of(message(name))
    assert ":" not in found or found == name


@pytest.mark.parametrize("name", ["id-17", "active-user", "paused", "meta:x:y", "redrive:workers:1", "stalled-check"])
def test_bq01_a_message_keeps_its_name_as_a_job_unless_a_key_of_the_queue_is_called_so(name: str) -> None:
    is_taken = name.partition(":")[0] in {"paused", "meta", "redrive", "stalled-check"}

    assert (job_id_of(message(name)) != name) is is_taken


def test_a_colon_is_a_hyphen_in_redis_and_two_names_never_meet() -> None:
    names = Names("bull")

    assert "email-send" == physical("email:send")
    assert "bull:email-send:wait" == names.keys("email:send")["wait"]
    with pytest.raises(ConfigurationError, match='"email:send" and "email-send"'):
        names.keys("email-send")


@pytest.mark.parametrize(("prefix", "queue", "slot"), [("{bull}", "mail", 9_263), ("bull", "{mail}", 4_247)])
def test_bq07_a_hash_tag_keeps_every_key_of_a_queue_in_one_slot(prefix: str, queue: str, slot: int) -> None:
    keys = keys_of(prefix, queue)

    assert {slot} == {slot_of(keys[part]) for part in PARTS}
    assert has_tag(keys.base)


def test_bq07_without_one_they_are_spread() -> None:
    keys = keys_of("bull", "mail")

    assert 1 < len({slot_of(keys[part]) for part in PARTS})
    assert not has_tag(keys.base)


def delays(options: object, *, attempts: int = 4, u: float = 0.0) -> list[int]:
    retry = retry_of(json.dumps(options).encode())
    return [retry.delay_ms(attempt, u) for attempt in range(1, attempts + 1)]


def test_bq02_waits_are_those_of_node() -> None:
    exponential = {"attempts": 5, "backoff": {"type": "exponential", "delay": 1_000}}
    jittered = {"attempts": 5, "backoff": {"type": "exponential", "delay": 1_000, "jitter": 0.5}}

    assert [1_000, 2_000, 4_000, 8_000] == delays(exponential)
    assert 5 == retry_of(json.dumps(exponential).encode()).max_attempts
    assert [700] * 4 == delays({"attempts": 5, "backoff": {"type": "fixed", "delay": 700}})
    assert [300] * 4 == delays({"attempts": 5, "backoff": 300})
    assert [500, 1_000, 2_000, 4_000] == delays(jittered)
    assert [999, 1_999, 3_999, 7_999] == delays(jittered, u=0.999_999)
    assert [0] * 4 == delays({"attempts": 5})


def test_bq02_without_attempts_there_is_one_and_junk_is_none() -> None:
    for options in (b"{}", b"", b"[]", b'{"attempts":0}', b'{"attempts":"many"}', b'{"attempts":-3,"backoff":[]}'):
        assert 1 == retry_of(options).max_attempts


def test_bq02_a_backoff_that_only_the_producer_knows_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match='"foo"'):
        delays({"attempts": 5, "backoff": {"type": "foo", "delay": 1}})


@given(st.integers(1, 10**7), st.floats(0, 0.999999), st.floats(0, 1e300), st.floats(0, 1))
def test_bq02_no_delay_is_ever_negative_or_endless(attempt: int, u: float, delay: float, jitter: float) -> None:
    options = {"attempts": 3, "backoff": {"type": "exponential", "delay": delay, "jitter": jitter}}

    assert 0 <= retry_of(json.dumps(options).encode()).delay_ms(attempt, u) <= 315_360_000_000


@pytest.mark.parametrize(
    ("retry", "backoff"),
    [
        (Retry(backoff=Fixed("700ms")), {"type": "fixed", "delay": 700}),
        (Retry(backoff=Exponential("1s")), {"type": "exponential", "delay": 1_000}),
        (Retry(backoff=Exponential("1s", jitter="equal")), {"type": "exponential", "delay": 1_000, "jitter": 0.5}),
        (Retry(backoff=Exponential("1s", cap="60s", jitter="±25%")), {"type": "exponential", "delay": 1_000}),
        (Retry(backoff=Tiers("30s", "5m")), {"type": "fixed", "delay": 30_000}),
        (Retry(backoff=Decorrelated("1s", "60s")), {"type": "fixed", "delay": 2_000}),
    ],
)
def test_a_retry_of_ours_is_what_comes_nearest_for_a_node_worker(retry: Retry, backoff: object) -> None:
    assert {"attempts": 5, "backoff": backoff} == options_of(retry)


@pytest.mark.parametrize("body", HARD_BODIES.values(), ids=HARD_BODIES.keys())
def test_every_body_is_json_for_node_and_itself_for_us(body: bytes) -> None:
    kind, data = stored_body(body)

    json.loads(data)
    assert body == body_of(kind, data)


@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_come_back_whatever_they_look_like(body: bytes) -> None:
    kind, data = stored_body(body)

    assert body == body_of(kind, data)


@pytest.mark.parametrize(
    "body",
    [b'{"n":123456789012345678901234567890}', b'{"f":1e400}', b'{"s":"\\ud800"}', b" [1.0,-0] ", b'{"a":1,"a":2}'],
)
def test_json_that_a_reader_would_change_is_stored_as_it_is(body: bytes) -> None:
    assert is_json(body)
    assert ("j", body) == stored_body(body)


@pytest.mark.parametrize("body", [b"NaN", b"{'a':1}", b"[1,]", b"\xef\xbb\xbf{}", b"", b"{", b'"\x01"', b"01"])
def test_what_node_cannot_parse_is_no_json(body: bytes) -> None:
    assert not is_json(body)
