"""System E, letter by letter from its page: names, numbers, classification, dead letters, redrive, archive."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive import ConfigurationError
from redrive.core.letters.letter import ReviewState
from redrive.runtime.archive import letters_in
from redrive.service import Service
from tests import redis as redis_servers
from tests.systems.loading import example
from tests.systems.mail_gateway import DLQ, QUEUE, Here, gateway, on_redis

A, B, C, D = (f"{name}@x.example" for name in "abcd")

# ------------------------------------------------------------------------------------------------ names and numbers


def test_every_default_is_the_systems_own(tmp_path: Path) -> None:
    with example("email_gateway", OUTBOX_FILE=str(tmp_path / "o.db")) as system:
        policy, consumer = system.policy, system.app.consumers[QUEUE]
    assert [] == list(tmp_path.iterdir()), "nothing is opened when the module is imported"

    assert {
        "max_attempts": 5,
        "base_delay_ms": 1_000,
        "max_delay_ms": 60_000,
        "jitter_factor": 0.25,
        "dlq_ttl_ms": 604_800_000,
        "dlq_name": "email:send:dlq",
        "dlq_max_size": 10_000,
        "default_ttl_ms": 86_400_000,
        "enable_round_robin": True,
        "max_jobs_per_tenant_batch": 3,
        "round_robin_base_priority": 5,
        "priority_increment_per_round": 1,
        "max_round_robin_priority": 1,
        "concurrency": 5,
        "limiter_max": 100,
        "limiter_duration_ms": 60_000,
    } == {name: getattr(policy, name) for name in policy.__slots__}
    assert (5, 5, 86_400_000, 604_800_000, 10_000, DLQ) == (
        consumer.max_attempts, consumer.concurrency, consumer.message_ttl_ms, consumer.letter_ttl_ms,
        consumer.max_letters, consumer.dead_letter_queue,
    )  # fmt: skip
    assert (100, 60_000, None) == (consumer.rate.count, consumer.rate.per_ms, consumer.breaker)


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("MAX_ATTEMPTS", "7", "max_attempts", 7),
        ("BASE_DELAY_MS", "500", "base_delay_ms", 500),
        ("MAX_DELAY_MS", "30000", "max_delay_ms", 30_000),
        ("JITTER_FACTOR", "0.5", "jitter_factor", 0.5),
        ("DLQ_TTL_MS", "1000", "dlq_ttl_ms", 1_000),
        ("DLQ_NAME", "other", "dlq_name", "other"),
        ("DLQ_MAX_SIZE", "3", "dlq_max_size", 3),
        ("DEFAULT_TTL", "60000", "default_ttl_ms", 60_000),
        ("ENABLE_ROUND_ROBIN", "false", "enable_round_robin", False),
        ("MAX_JOBS_PER_TENANT_BATCH", "9", "max_jobs_per_tenant_batch", 9),
        ("ROUND_ROBIN_BASE_PRIORITY", "8", "round_robin_base_priority", 8),
        ("PRIORITY_INCREMENT_PER_ROUND", "2", "priority_increment_per_round", 2),
        ("MAX_ROUND_ROBIN_PRIORITY", "2", "max_round_robin_priority", 2),
    ],
)
def test_every_variable_is_read_by_its_literal_name(name: str, value: str, field: str, expected: Any) -> None:
    from examples.email_gateway.policy import policy_from

    assert expected == getattr(policy_from({name: value}), field)


@pytest.mark.parametrize("name", ["MAX_ATTEMPTS", "BASE_DELAY_MS", "DLQ_MAX_SIZE", "ENABLE_ROUND_ROBIN"])
def test_a_wrong_variable_is_named(name: str) -> None:
    from examples.email_gateway.policy import policy_from

    with pytest.raises(ConfigurationError, match=name):
        policy_from({name: "-x"})


@pytest.mark.parametrize(
    ("attempt", "delay_ms"),
    [(1, 1_000), (2, 2_000), (3, 4_000), (4, 8_000), (5, 16_000), (6, 32_000), (7, 60_000), (100, 60_000)],
)
def test_the_cap_comes_before_the_jitter(attempt: int, delay_ms: int) -> None:
    """The source's table says 60 s from attempt 6 on; its formula gives 32 s there, and the formula holds."""
    from examples.email_gateway.policy import policy_from

    retry = policy_from({}).retry()
    drawn = [retry.delay_ms(attempt, u) for u in (0.0, 0.25, 0.5, 0.75, 0.999_999_999)]

    assert (delay_ms * 3 // 4, delay_ms, delay_ms * 5 // 4) == (drawn[0], drawn[2], drawn[4])
    assert sorted(drawn) == drawn
    assert attempt < 7 or (45_000, 75_000) == (drawn[0], drawn[4])


# ------------------------------------------------------------------------------------------------ sending


async def test_a_mail_is_sent_and_its_row_is_marked_and_enqueueing_it_again_adds_nothing(here: Here) -> None:
    async with here() as at:
        await at.enqueue("o-1")
        await at.sent("o-1")
        at.system.outbox._write("UPDATE outbox SET status = 'PENDING' WHERE id = ?", [("o-1",)])
        await at.enqueue()
        at.system.outbox.mark_sent("o-1")
        depths = await at.system.app.backend.broker.depths([QUEUE])

    [mail] = at.smtp.mails
    assert ("no-reply@acme.example", (A,)) == (mail.sender, mail.recipients)
    assert ("mail o-1", "<o-1@acme.example>") == (mail.message["subject"], mail.message["message-id"])
    assert [] == [depth for depth in depths if depth.ready + depth.scheduled + depth.leased]


@pytest.mark.parametrize("reply", ["421 4.3.2 shutting down", "450 4.2.0 busy", "451 4.3.0 x", "452 4.3.1 full"])
async def test_a_retryable_reply_is_retried(here: Here, reply: str) -> None:
    async with here() as at:
        at.smtp.refuse("rcpt", reply, times=2)
        await at.enqueue("o-1")
        await at.sent("o-1")

    assert [f"SMTP_{reply[:3]}"] * 2 == [each["error_code"] for each in at.run.named("delivery.retry_scheduled")]
    assert 1 == at.smtp.received_by(A)


@pytest.mark.parametrize("reply", ["500 5.5.2 what", "550 5.1.1 user unknown", "554 5.7.1 no"])
async def test_a_permanent_reply_is_dead_at_once(here: Here, reply: str) -> None:
    async with here() as at:
        at.smtp.refuse("rcpt", reply)
        await at.enqueue("o-1")
        [letter] = await at.dead()
        status = at.status("o-1")

    assert (f"SMTP_{reply[:3]}", 1, "ENQUEUED") == (letter.reason.code, letter.attempt_count, status)
    assert [] == at.smtp.mails


async def test_five_attempts_then_it_is_dead_and_the_letter_leaves_only_after_the_mail_was_sent(here: Here) -> None:
    async with here() as at:
        at.smtp.refuse("rcpt", "450 4.2.0 busy")
        await at.enqueue("o-1")
        [letter] = await at.dead()
        assert (5, "SMTP_450_EXHAUSTED", "ENQUEUED") == (letter.attempt_count, letter.reason.code, at.status("o-1"))

        await at.run.redrive(DLQ)
        [first, second] = await at.dead(2)
        assert (ReviewState.REPLAYED, ReviewState.PENDING) == (first.state, second.state)
        assert (first.id, "o-1", "o-1") == (second.previous, first.message.id, second.message.id)
        assert first.first_failed_at == second.first_failed_at

        at.smtp.mend()
        await at.run.redrive(DLQ)
        await at.sent("o-1")

        async def is_closed() -> bool:
            found = await at.run.letters(queue=DLQ)
            return [ReviewState.REPLAYED, ReviewState.CLOSED] == [each.state for each in found]

        await at.until_holds(is_closed)

    assert 1 == at.smtp.received_by(A)


@pytest.mark.parametrize("stage", ["connect", "mail", "rcpt", "data"])
async def test_a_connection_dropped_before_the_content_is_retried(here: Here, stage: str) -> None:
    async with here() as at:
        at.smtp.drop(stage, times=1)
        await at.enqueue("o-1")
        await at.sent("o-1")

    assert 1 == at.smtp.received_by(A)
    assert 1 == len(at.run.named("delivery.retry_scheduled"))


async def test_a_connection_dropped_after_the_end_of_data_is_not_blindly_repeated(here: Here) -> None:
    async with here() as at:
        at.smtp.drop("answer", times=1)
        await at.enqueue("o-1")
        await at.run.until(lambda: at.run.named("delivery.retry_scheduled"))

    [told] = at.run.named("delivery.retry_scheduled")
    assert ("SMTP_OUTCOME_UNKNOWN", True) == (told["error_code"], told["delay_ms"] >= 900_000)
    assert 1 == at.smtp.received_by(A)


class Allowance:
    """What a mail server allows: so many in each second, so many in all. The answers are Amazon's."""

    def __init__(self, *, per_s: int, per_day: int) -> None:
        self.per_s, self.per_day = per_s, per_day
        self.taken: Counter[int] = Counter()
        self.refused = 0

    def answer(self, stage: str, argument: str) -> str | None:
        if stage != "answer":
            return None
        second = int(time.monotonic())
        reply = None
        if self.taken.total() >= self.per_day:
            reply = "454 Throttling failure: Daily message quota exceeded."
        elif self.taken[second] >= self.per_s:
            reply = "454 Throttling failure: Maximum sending rate exceeded."
        self.taken[second] += reply is None
        self.refused += reply is not None
        return reply


async def test_of_five_hundred_mails_three_hundred_are_sent_and_two_hundred_wait_for_the_next_day(here: Here) -> None:
    """Case ML-05 with real mails, everything but the day ten times as fast."""
    allowance = Allowance(per_s=140, per_day=300)
    async with here(WORKER_CONCURRENCY="50") as at:
        at.smtp.answer_by(allowance.answer)
        await at.enqueue(*(f"o-{n}" for n in range(500)))
        await at.run.until(lambda: at.run.named("lane.held"))

        async def is_quiet() -> bool:
            depths = {depth.queue: depth for depth in await at.system.app.backend.broker.depths([QUEUE])}
            return (0, 200) == (depths[QUEUE].leased, depths[QUEUE].ready + depths[QUEUE].scheduled)

        await at.until_holds(is_quiet)
        marked = {row.id for row in at.system.outbox.rows() if row.status == "SENT"}

    taken = {mail.message["message-id"].strip("<>").partition("@")[0] for mail in at.smtp.mails}
    assert (300, 300, marked) == (len(at.smtp.mails), len(taken), taken)
    assert [] == [*at.run.named("delivery.dead_lettered"), *at.run.named("delivery.retry_scheduled")]
    assert "quota" == at.run.named("lane.held")[0]["cause"]
    assert allowance.refused <= 150


def test_turns_are_taken_as_the_variables_say() -> None:
    from examples.email_gateway.policy import policy_from

    fair = policy_from({"MAX_JOBS_PER_TENANT_BATCH": "7"}).fair()

    assert fair is not None
    assert ("tenant", 7) == (fair.by, fair.batch)
    assert [5, 4, 3, 2, 1, 1] == [fair.priority_after(rounds) for rounds in range(6)]
    names = {"ROUND_ROBIN_BASE_PRIORITY": "9", "PRIORITY_INCREMENT_PER_ROUND": "3", "MAX_ROUND_ROBIN_PRIORITY": "2"}
    assert [9, 6, 3, 2] == [policy_from(names).fair().priority_after(rounds) for rounds in range(4)]
    assert None is policy_from({"ENABLE_ROUND_ROBIN": "false"}).fair()


async def test_no_tenant_has_more_than_three_in_a_row_while_another_waits(here: Here) -> None:
    async with here(WORKER_CONCURRENCY="1", LIMITER_MAX="1", LIMITER_DURATION_MS="300") as at:
        if at.system.app.consumers[QUEUE].fair is None:
            pytest.skip("this broker takes no turns")
        await at.enqueue("first")
        noisy = [f"n-{n}" for n in range(20)]
        quiet = [f"q-{n}" for n in range(4)]
        for company, ids in (("noisy", noisy), ("quiet", quiet)):
            for row_id in ids:
                at.system.outbox.add(company, (A,), id=row_id)
        await at.enqueue()
        await at.sent(*quiet)

    order = [str(mail.message["message-id"])[1] for mail in at.smtp.mails]
    last = max(at for at, who in enumerate(order) if who == "q")
    rows = "".join(order[order.index("n") : last])
    assert "nnnn" not in rows


# ------------------------------------------------------------------------------------------------ several recipients


async def test_those_who_were_accepted_get_one_mail_and_only_the_one_refused_for_now_is_tried_again(here: Here) -> None:
    """Case ML-06, against a real server."""
    async with here() as at:
        at.smtp.refuse("rcpt", "550 5.1.1 user unknown", only=B)
        at.smtp.refuse("rcpt", "451 4.2.1 busy", only=C, times=1)
        await at.enqueue("o-1", to=(A, B, C, D))
        await at.sent("o-1")
        refused = at.run.named("mail.recipient_refused")

        await at.enqueue("o-2", to=(A, B))
        await at.sent("o-2")

    assert [1, 1] == [at.smtp.mails[0].recipients.count(each) for each in (A, D)]
    assert [(A, D), (C,), (A,)] == [mail.recipients for mail in at.smtp.mails]
    assert [("x.example", "SMTP_550", True)] == [
        (each["domain"], each["error_code"], each["suppress"]) for each in refused
    ]
    assert 1 == len(at.run.named("delivery.retry_scheduled"))


async def test_all_refused_for_now_are_tried_once_more_and_all_refused_for_good_are_dead(here: Here) -> None:
    """Case ML-06, the variants."""
    async with here() as at:
        for address in (A, B, C, D):
            at.smtp.refuse("rcpt", "451 4.2.1 busy", only=address, times=1)
        await at.enqueue("o-1", to=(A, B, C, D))
        await at.sent("o-1")
        at.smtp.refuse("rcpt", "550 5.1.1 user unknown")
        await at.enqueue("o-2", to=(A, B))
        [letter] = await at.dead()

    assert [(A, B, C, D)] == [mail.recipients for mail in at.smtp.mails]
    assert 1 == len(at.run.named("delivery.retry_scheduled"))
    assert ("SMTP_550", 1) == (letter.reason.code, letter.attempt_count)


async def test_a_refused_content_after_mixed_recipients_is_retried_for_those_who_were_accepted(here: Here) -> None:
    """Case ML-06: DATA refused 451 after mixed RCPT."""
    async with here() as at:
        at.smtp.refuse("rcpt", "550 5.1.1 user unknown", only=B)
        at.smtp.refuse("answer", "451 4.3.0 try later", times=1)
        await at.enqueue("o-1", to=(A, B, C, D))
        await at.sent("o-1")

    assert [(A, C, D)] == [mail.recipients for mail in at.smtp.mails]
    assert 5 == at.smtp.asked["rcpt"] - 2


async def test_a_redrive_writes_to_nobody_who_got_the_mail(here: Here) -> None:
    async with here(MAX_ATTEMPTS="2") as at:
        at.smtp.refuse("rcpt", "451 4.2.1 busy", only=C)
        await at.enqueue("o-1", to=(A, C))
        [letter] = await at.dead()
        at.smtp.mend()
        await at.run.redrive(DLQ)
        await at.sent("o-1")

    assert [(A,), (C,)] == [mail.recipients for mail in at.smtp.mails]
    assert [A, C] == json.loads(letter.message.original_body)["to"]


# ------------------------------------------------------------------------------------------------ lifetime, archive


async def test_a_job_that_outlived_its_lifetime_is_expired_and_was_never_sent(here: Here) -> None:
    async with here(DEFAULT_TTL="1") as at:
        await at.enqueue("o-1")
        [letter] = await at.dead()
        from examples.email_gateway.documents import dead_letter_entry

        entry = dead_letter_entry(letter)

    assert ("EXPIRED", "EXPIRED", 1, []) == (
        letter.reason.code, entry["lastFailureCode"], entry["failedAttempts"], at.smtp.mails,
    )  # fmt: skip


async def test_over_the_maximum_the_oldest_letters_are_archived_and_can_be_loaded_again(here: Here) -> None:
    async with here(DLQ_MAX_SIZE="3", WORKER_CONCURRENCY="1") as at:
        at.smtp.refuse("rcpt", "550 5.1.1 user unknown")
        await at.enqueue(*(f"o-{n}" for n in range(5)))
        await at.dead(5)
        await at.run.until(lambda: sum(each["count"] for each in at.run.named("letters.archived")) == 2)
        left = {letter.message.id for letter in await at.run.letters(queue=DLQ)}
        [file] = {Path(each["file"]) for each in at.run.named("letters.archived")}
        archived = {letter.message.id for letter in letters_in(file)}
        added = await Service(at.system.app).take_in(list(letters_in(file)))

    assert {f"o-{n}" for n in range(5)} == left | archived
    assert (3, 2, 2) == (len(left), len(archived), added)


# ------------------------------------------------------------------------------------------------ documents, log


async def test_the_dead_letter_entry_has_the_systems_own_fields(here: Here) -> None:
    from examples.email_gateway.documents import dead_letter_entry

    async with here() as at:
        at.smtp.refuse("rcpt", "450 4.2.0 busy")
        await at.enqueue("o-1", company="acme")
        [letter] = await at.dead()
        entry = dead_letter_entry(letter)

    assert [
        "jobId", "outboxId", "companyId", "originalData", "failedAttempts", "lastFailureReason", "lastFailureCode",
        "lastFailureTimestamp", "enqueuedAt", "movedToDLQAt", "ttl",
    ] == list(entry)  # fmt: skip
    assert ("o-1", "o-1", "acme", 5, "SMTP_450", 604_800_000) == (
        entry["jobId"], entry["outboxId"], entry["companyId"], entry["failedAttempts"], entry["lastFailureCode"],
        entry["ttl"],
    )  # fmt: skip
    assert "450 4.2.0 busy" in entry["lastFailureReason"]
    assert {"outboxId": "o-1", "companyId": "acme", "to": [A]}.items() <= entry["originalData"].items()
    assert entry["enqueuedAt"] == entry["originalData"]["enqueuedAt"]
    json.dumps(entry)


@pytest.mark.parametrize("version", [redis_servers.OLD, redis_servers.NEW])
async def test_in_redis_the_entry_is_the_data_of_a_job_in_the_dead_letter_queue(version: str, tmp_path: Path) -> None:
    """Where Node and its dashboards find it: `bull:email-send-dlq`."""
    server = redis_servers.empty_server(version)
    async with gateway(tmp_path, **on_redis(server.url, tmp_path)) as at:
        at.smtp.refuse("rcpt", "550 5.1.1 user unknown")
        await at.enqueue("o-1")
        [letter] = await at.dead()
        [entry] = await at.system.app.backend.broker.peek(DLQ, limit=10)
        jobs = [key.decode() for key in server.ask("KEYS", "bull:email-send-dlq:*")]
        data = [server.ask("HGET", key, "data") for key in jobs if server.ask("TYPE", key) in (b"hash", "hash")]

    assert at.system.dead_letter_entry(letter) == json.loads(entry.body)
    assert any(b'"outboxId"' in (found or b"") and b'"lastFailureReason"' in found for found in data)


@pytest.mark.parametrize("change", [{"lastFailureReason": " "}, {"lastFailureReason": None}, {"failedAttempts": 0}])
def test_an_entry_without_a_reason_or_a_failure_is_refused(change: dict[str, Any]) -> None:
    from examples.email_gateway.documents import checked

    entry = {"jobId": "o-1", "lastFailureReason": "x", "failedAttempts": 1}
    assert entry == checked(entry)
    with pytest.raises(ValueError, match="o-1"):
        checked({**entry, **change})


async def test_a_job_that_is_malformed_is_a_dead_letter_with_an_entry(here: Here) -> None:
    from examples.email_gateway.documents import dead_letter_entry

    async with here() as at:
        await at.system.app.publish(QUEUE, b"{not json", message_id="o-1", tenant="acme")
        await at.system.app.publish(QUEUE, {"outboxId": "o-2"}, message_id="o-2")
        entries = {entry["jobId"]: entry for entry in map(dead_letter_entry, await at.dead(2))}

    assert ("MALFORMED_PAYLOAD", "acme", "{not json") == (
        entries["o-1"]["lastFailureCode"], entries["o-1"]["companyId"], entries["o-1"]["originalData"],
    )  # fmt: skip
    assert "VALIDATION_FAILED" == entries["o-2"]["lastFailureCode"]


@pytest.mark.parametrize(
    "change",
    [
        {"to": []}, {"to": ["no address"]}, {"to": ["a@x\r\nRCPT TO:<b@x>"]}, {"to": ["ü@x.example"]}, {"to": [A] * 51},
        {"from": "<a@x>"}, {"enqueuedAt": "yesterday"}, {"enqueuedAt": "2026-01-31T12:00:00"}, {"outboxId": ""},
        {"companyId": None}, {"subject": 5},
    ],
)  # fmt: skip
def test_a_job_with_a_wrong_field_is_refused_before_anything_is_sent(change: dict[str, Any]) -> None:
    from examples.email_gateway.messages import EmailJob

    job = {
        "outboxId": "o-1", "companyId": "acme", "from": A, "to": [B], "subject": "s", "text": "t",
        "enqueuedAt": "2026-01-31T12:00:00Z",
    }  # fmt: skip
    assert (B,) == msgspec.convert(job, EmailJob).to
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**job, **change}, EmailJob)


def test_a_mail_is_the_same_in_every_attempt_and_no_field_breaks_its_head() -> None:
    from examples.email_gateway.messages import EmailJob, mail_of

    job = EmailJob(
        outbox_id="o-1", company_id="acme", sender=A, to=(B, C), subject="odd\r\nBcc: d@x.example", text="häh\n.\n",
        enqueued_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
    )  # fmt: skip
    mail = message_from_bytes(mail_of(job), policy=policy.default)

    assert mail_of(job) == mail_of(job)
    assert ("odd Bcc: d@x.example", None) == (mail["subject"], mail["bcc"])
    assert ("<o-1@x.example>", "Sat, 31 Jan 2026 12:00:00 +0000") == (mail["message-id"], mail["date"])


async def test_the_log_line_of_a_retry_has_the_systems_own_fields(here: Here) -> None:
    from examples.email_gateway.logs import subscribe_log

    stream = io.StringIO()
    async with here() as at:
        subscribe_log(at.system.app, stream)
        at.smtp.refuse("rcpt", "450 4.2.0 busy", times=1)
        await at.enqueue("o-1", company="acme")
        await at.sent("o-1")

    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [
        "level", "message", "jobId", "companyId", "attempt", "maxAttempts", "errorCode", "errorReason",
        "nextRetryDelay", "isRetryable", "timestamp",
    ] == list(line)  # fmt: skip
    assert ("warn", "Job failed, scheduling retry", "o-1", "acme", 1, 5, "SMTP_450", True) == (
        line["level"], line["message"], line["jobId"], line["companyId"], line["attempt"], line["maxAttempts"],
        line["errorCode"], line["isRetryable"],
    )  # fmt: skip
    assert line["nextRetryDelay"] in (0, 1)
