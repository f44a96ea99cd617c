"""A POST with an Idempotency-Key is carried out once, whichever server gets it, whatever was killed in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from redrive.core.access import Role
from redrive.core.idempotency import Acquired
from redrive.core.ports import Registration
from redrive.errors import BrokerUnavailableError
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.clock import FakeClock
from redrive.testing.samples import QUEUE
from redrive.web.admin import AdminApi, Guard
from redrive.web.admin.keys import KEPT_MS, LEASE_MS, fingerprint, request_key
from redrive.web.admin.keys import QUEUE as CLAIMS
from tests.web.conftest import URL, Api, code, put_letters

CLOSE = "/api/v1/letters/close"
KEY = {"idempotency-key": '"k"'}
NAME = request_key("operator-ann", "k")


@pytest.fixture
def ask() -> dict[str, Any]:
    return {"selection": {"ids": ["dl_0001"]}}


@asynccontextmanager
async def another_server(api: Api, app: Redrive) -> AsyncIterator[Api]:
    """Another process on the same store: nothing in its memory."""
    made = AdminApi(app, Guard(app.clock, app.events, tokens=api.tokens))
    transport = httpx.ASGITransport(made, client=("192.0.2.2", 40_000))
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        yield replace(api, api=made, client=client)
    await made.close()


async def test_another_server_gives_the_same_answer(api: Api, app: Redrive, ask: Any) -> None:
    await put_letters(app, 1)
    first = await api.post(CLOSE, ask, headers=KEY)
    async with another_server(api, app) as other:
        again = await other.post(CLOSE, ask, headers=KEY)
        reused = await other.post(CLOSE, {**ask, "note": "x"}, headers=KEY)
        theirs = await other.post(CLOSE, ask, headers=KEY, role=Role.ADMIN)

    assert (200, 1) == (first.status_code, first.json()["changed"])
    assert (first.content, first.headers["request-id"], "application/json") == (
        again.content,
        again.headers["request-id"],
        again.headers["content-type"],
    )
    assert (422, "key_reused") == code(reused)
    assert 0 == theirs.json()["changed"]
    assert 2 == len(api.named("api.written"))


async def test_a_refusal_is_an_answer_too(api: Api, app: Redrive) -> None:
    first = await api.post(f"/api/v1/queues/{QUEUE}/release", {"tenants": ["acme"]}, headers=KEY)
    await api.post(f"/api/v1/queues/{QUEUE}/quarantine", {"tenants": ["acme"]})
    async with another_server(api, app) as other:
        again = await other.post(f"/api/v1/queues/{QUEUE}/release", {"tenants": ["acme"]}, headers=KEY)

    assert (404, first.content) == (again.status_code, again.content)
    assert "application/problem+json" == again.headers["content-type"]


async def test_while_the_first_is_carried_out_the_second_is_told(
    api: Api, app: Redrive, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_letters(app, 1)
    real, begun, go_on = Service.review, asyncio.Event(), asyncio.Event()

    async def slow(self: Any, *given: Any, **named: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await real(self, *given, **named)

    monkeypatch.setattr(Service, "review", slow)
    async with another_server(api, app) as other:
        first = asyncio.create_task(api.post(CLOSE, ask, headers=KEY))
        await begun.wait()
        second = await other.post(CLOSE, ask, headers=KEY)
        go_on.set()
        done = await first
        third = await other.post(CLOSE, ask, headers=KEY)

    assert (409, "key_in_use", "1") == (*code(second), second.headers["retry-after"])
    assert (1, done.content) == (done.json()["changed"], third.content)


async def test_a_lease_is_renewed_for_as_long_as_it_takes(
    api: Api, app: Redrive, ask: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_letters(app, 1)
    real, begun, go_on = Service.review, asyncio.Event(), asyncio.Event()

    async def slow(self: Any, *given: Any, **named: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await real(self, *given, **named)

    loop, renewed, renew = asyncio.get_running_loop(), asyncio.Event(), app.backend.claims.renew

    def told(*given: Any, **named: Any) -> Any:
        answer = renew(*given, **named)
        loop.call_soon_threadsafe(renewed.set)
        return answer

    monkeypatch.setattr(app.backend.claims, "renew", told)
    monkeypatch.setattr(Service, "review", slow)
    first = asyncio.create_task(api.post(CLOSE, ask, headers=KEY))
    await begun.wait()
    begun_at = clock.now()
    while clock.now() < begun_at + 5 * LEASE_MS:
        renewed.clear()
        await clock.run_until(lambda: clock.sleepers > 0)
        await clock.advance_to_next()
        await renewed.wait()
    second = await api.post(CLOSE, ask, headers=KEY)
    go_on.set()

    assert (409, "key_in_use") == code(second)
    assert 1 == (await first).json()["changed"]


async def held(app: Redrive, ask_bytes: bytes) -> Acquired:
    """As a server leaves it that is killed with the claim in hand."""
    given = Registration(queue=CLAIMS, key=NAME, digest=fingerprint("POST", CLOSE, ask_bytes), expires_at=None)
    await app.backend.claims.register([given])
    [verdict] = await app.backend.claims.claim([(CLAIMS, NAME)], lease_ms=LEASE_MS, owner="gone")
    assert isinstance(verdict, Acquired)
    return verdict


async def test_after_a_server_was_killed_the_next_one_carries_it_out(
    api: Api, app: Redrive, ask: Any, clock: FakeClock
) -> None:
    await put_letters(app, 1)
    content = b'{"selection": {"ids": ["dl_0001"]}}'
    given = {"content": content, "headers": {**KEY, "content-type": "application/json"}}
    await held(app, content)

    early = await api.ask("POST", CLOSE, Role.OPERATOR, **given)
    await clock.leap_to(clock.now() + LEASE_MS)
    later = await api.ask("POST", CLOSE, Role.OPERATOR, **given)
    again = await api.ask("POST", CLOSE, Role.OPERATOR, **given)

    assert (409, "key_in_use") == code(early)
    assert (1, later.content) == (later.json()["changed"], again.content)


async def test_an_answer_that_was_kept_before_the_kill_is_given(
    api: Api, app: Redrive, ask: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_letters(app, 1)
    real = app.backend.claims.finish

    async def killed(*given: Any) -> Any:
        raise BrokerUnavailableError("Killed right here.")

    monkeypatch.setattr(app.backend.claims, "finish", killed)
    first = await api.post(CLOSE, ask, headers=KEY)
    monkeypatch.setattr(app.backend.claims, "finish", real)
    await clock.leap_to(clock.now() + LEASE_MS)
    again = await api.post(CLOSE, ask, headers=KEY)
    once_more = await api.post(CLOSE, ask, headers=KEY)

    assert 1 == first.json()["changed"]
    assert first.content == again.content == once_more.content
    assert 1 == len(api.named("api.written"))


async def test_a_failure_of_ours_is_no_answer(
    api: Api, app: Redrive, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_letters(app, 1)

    async def away(*given: Any, **named: Any) -> Any:
        raise BrokerUnavailableError("The file is locked. Nothing was changed.")

    with monkeypatch.context() as patched:
        patched.setattr(app.backend.letters, "review", away)
        failed = await api.post(CLOSE, ask, headers=KEY)
    done = await api.post(CLOSE, ask, headers=KEY)

    assert (503, "broker_unavailable") == code(failed)
    assert 1 == done.json()["changed"]


async def test_a_store_that_is_away_before_the_claim_carries_nothing_out(
    api: Api, app: Redrive, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_letters(app, 1)

    async def away(*given: Any, **named: Any) -> Any:
        raise BrokerUnavailableError("The file is locked. Nothing was changed.")

    with monkeypatch.context() as patched:
        patched.setattr(app.backend.claims, "register", away)
        failed = await api.post(CLOSE, ask, headers=KEY)
    done = await api.post(CLOSE, ask, headers=KEY)

    assert (503, "broker_unavailable") == code(failed)
    assert (1, 1) == (done.json()["changed"], len(api.named("api.written")))


async def test_after_a_day_a_key_is_new(api: Api, app: Redrive, ask: Any, clock: FakeClock) -> None:
    await put_letters(app, 1)
    await api.post(CLOSE, ask, headers=KEY)
    await clock.leap_to(clock.now() + KEPT_MS - 1)
    kept = await api.post(CLOSE, ask, headers=KEY)
    await clock.leap_to(clock.now() + 2)

    fresh = await api.post(CLOSE, {**ask, "note": "x"}, headers=KEY)

    assert (1, 0) == (kept.json()["changed"], fresh.json()["changed"])


async def test_keys_make_no_queue(api: Api, app: Redrive, ask: Any) -> None:
    await api.post(CLOSE, ask, headers=KEY)

    assert [QUEUE] == [each["queue"] for each in (await api.get("/api/v1/queues")).json()["queues"]]
