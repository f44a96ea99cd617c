"""Push consumers against a real HTTP server: an ordinary consumer in every respect, on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import BreakerPolicy, Fixed, Redrive, Retry
from redrive.core.letters.letter import Letter, ReviewState
from redrive.ingest.schemes import StandardWebhooks
from redrive.ingest.signatures import Verified
from redrive.push import push_to
from redrive.testing import in_memory
from redrive.testing.app_run import AppRun
from tests.push.endpoint import Decide, Endpoint, Reply, Request, endpoint, replies

QUEUE = "orders"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PATIENCE_S = 30.0


@asynccontextmanager
async def pushing(decide: Decide | None = None, **options: Any) -> AsyncIterator[tuple[AppRun, Endpoint]]:
    async with endpoint(decide) as service:
        app = Redrive("shop", broker="memory://")
        given = {"allow_private": True, "retry": Retry(max_attempts=3, backoff=Fixed("5s")), "breaker": None, **options}
        push_to(app, QUEUE, given.pop("url", service.url), **given)
        async with in_memory(app) as run:
            yield run, service


async def the_letter(run: AppRun) -> Letter:
    (letter,) = await run.letters()
    return letter


async def test_the_body_arrives_byte_for_byte_with_its_headers() -> None:
    body = b'{"n":  1}\x00\xff\r\n'
    async with pushing() as (run, service):
        await run.publish(QUEUE, body, headers={"region": "eu"}, message_id="m-1", content_type="application/x-own")
        await run.until_idle()

    (request,) = service.requests
    assert (body, "/messages") == (request.body, request.path)
    assert ("application/x-own", "m-1", "eu", "1", QUEUE) == tuple(
        request.headers[name]
        for name in ("content-type", "webhook-id", "redrive-header-region", "redrive-attempt", "redrive-queue")
    )
    assert "authorization" not in request.headers


async def test_an_empty_body_is_posted_too() -> None:
    async with pushing() as (run, service):
        await run.publish(QUEUE, b"")
        await run.until_idle()

    assert [b""] == [request.body for request in service.requests]


async def test_2xx_is_done_and_a_failure_is_tried_again() -> None:
    async with pushing(replies(503, 429, 204)) as (run, service):
        await run.publish(QUEUE, b"x", message_id="m-1")
        await run.until_idle()

        assert () == await run.letters()
    assert ["1", "2", "3"] == [request.headers["redrive-attempt"] for request in service.requests]
    assert {"m-1"} == {request.headers["webhook-id"] for request in service.requests}


async def test_exhausted_attempts_end_in_a_letter_that_says_what_was_answered() -> None:
    async with pushing(replies(Reply(status=500, body=b"no disk space"))) as (run, service):
        await run.publish(QUEUE, b"x")
        await run.until_idle()

        letter = await the_letter(run)
    assert 3 == len(service.requests)
    assert "HTTP_500_EXHAUSTED" == letter.reason.code
    assert ["HTTP_500"] * 3 == [attempt.error_code for attempt in letter.history]
    assert "HTTP 500 Internal Server Error: no disk space" == letter.history[0].error_text
    assert {None} == {attempt.error_type for attempt in letter.history}


async def test_a_long_answer_is_kept_in_part_and_binary_is_readable() -> None:
    async with pushing(replies(Reply(status=500, body=b"\xff\x00" + b"x" * 500_000)), keep_bytes=50) as (run, _):
        await run.publish(QUEUE, b"x")
        await run.until_idle()

        text = (await the_letter(run)).history[0].error_text
    assert text is not None
    assert "HTTP 500 Internal Server Error: \ufffd\ufffd" + "x" * 48 == text


async def test_4xx_is_retried_unless_it_is_to_be_final() -> None:
    async with pushing(replies(404)) as (run, service):
        await run.publish(QUEUE, b"x")
        await run.until_idle()
        assert 3 == len(service.requests)

    async with pushing(replies(404), gives_up_on_4xx=True) as (run, service):
        await run.publish(QUEUE, b"x")
        await run.until_idle()
        assert 1 == len(service.requests)
        assert "HTTP_404" == (await the_letter(run)).reason.code


async def test_redirects_are_not_followed() -> None:
    async with pushing(replies(Reply(status=307, headers=((b"location", b"/elsewhere"),)))) as (run, service):
        await run.publish(QUEUE, b"x")
        await run.until_idle()

        assert "HTTP_307_EXHAUSTED" == (await the_letter(run)).reason.code
    assert {"/messages"} == {request.path for request in service.requests}


async def test_retry_after_is_honoured() -> None:
    busy = Reply(status=503, headers=((b"retry-after", b"3600"),))
    async with pushing(replies(busy, 200)) as (run, service):
        await run.publish(QUEUE, b"x")
        began = run.clock.now()
        await run.until_idle()

    assert 2 == len(service.requests)
    assert run.clock.now() - began >= 3_600_000


async def test_425_costs_no_attempt_however_often() -> None:
    async with pushing(replies(*[425] * 10, 500, 425, 200)) as (run, service):
        await run.publish(QUEUE, b"x")
        await run.until_idle()

        assert () == await run.letters()
    assert ["1"] * 11 + ["2", "2"] == [request.headers["redrive-attempt"] for request in service.requests]


@pytest.mark.parametrize("where", ["header", "body"])
async def test_a_message_is_not_pushed_before_its_time(where: str) -> None:
    seen: list[int] = []
    async with pushing() as (run, service):
        service.decide = lambda _request: seen.append(run.clock.now()) or Reply()  # type: ignore[func-returns-value]
        published_at = run.clock.now()
        if where == "header":
            await run.publish(QUEUE, b"x", headers={"processAfterDelayMs": 7_500})
        else:
            await run.publish(QUEUE, {"processAfterDelayMs": 7_500})
        await run.publish(QUEUE, b"other")
        await run.until_idle()

        assert () == await run.letters()
    assert [0, 7_500] == [at - published_at for at in seen]


async def test_a_message_waiting_for_its_time_does_not_hold_up_others() -> None:
    async with pushing(concurrency=2) as (run, service):
        for _ in range(10):
            await run.publish(QUEUE, b"early", headers={"processAfterDelayMs": 60_000})
        for _ in range(5):
            await run.publish(QUEUE, b"now")
        await run.until_idle()

    assert [b"now"] * 5 + [b"early"] * 10 == [request.body for request in service.requests]


async def test_requests_are_signed_so_that_the_service_can_check() -> None:
    scheme = StandardWebhooks()
    async with pushing(secrets=[SECRET]) as (run, service):
        await run.publish(QUEUE, b'{"a": 1}')
        await run.until_idle()
        now = run.clock.now()

    (request,) = service.requests
    raw = [(name.encode(), value.encode()) for name, value in request.headers.items()]
    keys = [scheme.key(SECRET)]
    assert isinstance(scheme.verify(raw, request.body, keys=keys, now=now, tolerance_ms=60_000), Verified)
    assert not isinstance(scheme.verify(raw, b"{}", keys=keys, now=now, tolerance_ms=60_000), Verified)


async def test_credentials_are_sent_and_never_told() -> None:
    async with endpoint(replies(Reply(status=500))) as service:
        url = service.url.replace("http://", "http://me:s3cr3t@")
        async with pushing(url=url) as (run, _):
            await run.publish(QUEUE, b"x")
            await run.until_idle()
            letter, events = await the_letter(run), list(run.events)

    assert {"Basic bWU6czNjcjN0"} == {request.headers["authorization"] for request in service.requests}
    assert "s3cr3t" not in repr(letter) + repr(events)
    assert "bWU6czNjcjN0" not in repr(letter) + repr(events)


async def test_connections_are_used_again() -> None:
    async with pushing(concurrency=4) as (run, service):
        await asyncio.gather(*(run.publish(QUEUE, f"{n}") for n in range(60)))
        await run.until_idle()

    assert 60 == len(service.requests)
    assert len({request.client for request in service.requests}) <= 4


async def test_as_many_requests_at_once_as_allowed() -> None:
    release = asyncio.Event()
    async with pushing(replies(Reply(release=release)), concurrency=3) as (run, service):
        for n in range(9):
            await run.publish(QUEUE, f"{n}")
        working = asyncio.create_task(run.until_idle())
        async with asyncio.timeout(PATIENCE_S):
            while service.in_hand < 3:
                service.came.clear()
                await service.came.wait()
        release.set()
        await working

    assert (9, 3) == (len(service.requests), service.at_once)


async def test_a_service_that_does_not_answer_in_time_is_a_failed_attempt() -> None:
    release = asyncio.Event()
    async with pushing(replies(Reply(release=release)), timeout="50ms") as (run, _):
        await run.publish(QUEUE, b"x")
        await run.until_idle()
        letter = await the_letter(run)
        release.set()

    assert 3 == len(letter.history)
    assert "DOWNSTREAM_TIMEOUT_EXHAUSTED" == letter.reason.code


async def test_a_service_that_is_not_there_is_a_failed_attempt() -> None:
    async with endpoint() as gone:
        url = gone.url
    async with pushing(url=url) as (run, _):
        await run.publish(QUEUE, b"x")
        await run.until_idle()
        letter = await the_letter(run)

    assert "ECONNREFUSED_EXHAUSTED" == letter.reason.code
    assert letter.history[0].error_type is not None


async def test_an_answer_that_is_no_http_is_a_failed_attempt() -> None:
    async def nonsense(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with server, pushing(url=f"http://{host}:{port}/") as (run, _):
        await run.publish(QUEUE, b"x")
        await run.until_idle()
        letter = await the_letter(run)

    assert 3 == len(letter.history)


async def test_the_status_counts_even_where_the_rest_of_the_answer_is_cut_off() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with server, pushing(url=f"http://{host}:{port}/") as (run, _):
        await run.publish(QUEUE, b"x")
        await run.until_idle()

        assert () == await run.letters()


async def test_a_name_that_leads_into_the_own_network_is_refused_at_the_connection() -> None:
    """The name looks public; what it resolves to decides, at every connection."""
    async with pushing(url="http://localhost.localdomain/messages", allow_private=False) as (run, service):
        await run.publish(QUEUE, b"x")
        await run.until_idle()
        letter = await the_letter(run)

    assert 0 == len(service.requests)
    assert letter.reason.code in {"TARGET_REFUSED_EXHAUSTED", "DNS_FAILED_EXHAUSTED"}


async def test_an_outage_opens_the_breaker_and_costs_no_attempts_beyond_it() -> None:
    policy = BreakerPolicy(failures=5)
    answers = replies(*[503] * 8, 200)
    async with pushing(answers, breaker=policy, retry=Retry(max_attempts=50), concurrency=1) as (run, _):
        for n in range(20):
            await run.publish(QUEUE, f"{n}")
        await run.until_idle()

        assert () == await run.letters()
        changes = [event.fields["state"] for event in run.events if event.name == "breaker.changed"]
    assert ["open", "closed"] == changes


async def test_a_redriven_letter_is_pushed_again_and_closed() -> None:
    async with pushing(replies(500, 500, 500, 200)) as (run, service):
        await run.publish(QUEUE, b"x", message_id="m-1")
        await run.until_idle()
        await run.redrive()

        assert ReviewState.CLOSED is (await the_letter(run)).state
    assert ["1", "2", "3", "1"] == [request.headers["redrive-attempt"] for request in service.requests]


async def test_two_messages_with_one_key_are_pushed_once() -> None:
    async with pushing() as (run, service):
        for _ in range(3):
            await run.publish(QUEUE, b"x", idempotency_key="order-7")
        await run.until_idle()

    assert 1 == len(service.requests)
    assert "order-7" == service.requests[0].headers["redrive-key"]


async def test_on_the_embedded_file_a_stopping_worker_waits_for_its_requests(tmp_path: Path) -> None:
    release = asyncio.Event()

    def decide(_request: Request) -> Reply:
        return Reply(release=release)

    async with endpoint(decide) as service:
        app = Redrive("shop", broker=f"sqlite:///{tmp_path}/push.db")
        push_to(app, QUEUE, service.url, allow_private=True)
        async with app:
            await app.publish(QUEUE, b"x", message_id="m-1")
            worker = app.worker()
            running = asyncio.create_task(worker.run())
            async with asyncio.timeout(PATIENCE_S):
                await service.came.wait()
                worker.stop()
                release.set()
                await running

            depths = await app.backend.broker.depths()

    assert 1 == len(service.requests)
    assert [0] == [depth.ready + depth.scheduled + depth.leased for depth in depths if depth.queue == QUEUE]
