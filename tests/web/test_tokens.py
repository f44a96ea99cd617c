"""Tokens over HTTP: shown once, kept nowhere else, gone from the next request on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from redrive.core.access import Role
from redrive.core.audit import WriteQuery
from redrive.runtime.app import Redrive
from redrive.web.admin import AdminApi, Guard
from redrive.web.server import HttpServer
from tests.web.conftest import Api, code

TOKENS = "/api/v1/tokens"


async def me(api: Api, secret: str) -> int:
    return (await api.client.get("/api/v1/me", headers={"authorization": f"Bearer {secret}"})).status_code


async def test_a_token_is_made_used_listed_and_revoked(api: Api, app: Redrive) -> None:
    made = (await api.post(TOKENS, {"name": "bob", "role": "operator"}, role=Role.ADMIN)).json()
    let_in = await me(api, made["token"])
    listed = await api.get(TOKENS, Role.ADMIN)
    revoked = await api.ask("DELETE", f"{TOKENS}/bob", Role.ADMIN)
    again = await api.ask("DELETE", f"{TOKENS}/bob", Role.ADMIN)

    assert (("bob", "operator"), 200) == ((made["name"], made["role"]), let_in)
    assert ("bob", "operator") in [(each["name"], each["role"]) for each in listed.json()["tokens"]]
    assert made["token"] not in listed.text
    assert ({"revoked": "bob"}, 404, 401) == (revoked.json(), code(again)[0], await me(api, made["token"]))


async def test_a_token_stands_in_no_record_and_no_kept_answer(api: Api, app: Redrive) -> None:
    headers = {"idempotency-key": '"k"'}
    made = await api.post(TOKENS, {"name": "bob"}, role=Role.ADMIN, headers=headers)
    again = await api.post(TOKENS, {"name": "bob"}, role=Role.ADMIN, headers=headers)
    writes = await app.backend.requests.writes(WriteQuery(), limit=10)  # type: ignore[union-attr]

    assert (200, 422) == (made.status_code, code(again)[0])
    assert made.json()["token"] not in repr(writes) + json.dumps(
        [dict(each.fields) for each in api.events], default=str
    )
    assert ["create_token"] * 2 == [each.operation for each in writes.writes]
    assert {} == getattr(app.backend.requests, "_answers", {})


async def test_before_the_app_is_open_no_token_is_made_or_revoked(api: Api, app: Redrive) -> None:
    backend, app._backend = app._backend, None
    made = await api.post(TOKENS, {"name": "bob"}, role=Role.ADMIN)
    revoked = await api.ask("DELETE", f"{TOKENS}/viewer-ann", Role.ADMIN)
    app._backend = backend

    assert [(503, "starting")] * 2 == [code(made), code(revoked)]
    assert 3 == len(api.tokens.tokens())
    assert [503, 503] == [each["status"] for each in api.named("api.written")]


async def test_the_record_says_whose_token_was_made(api: Api, app: Redrive) -> None:
    await api.post(TOKENS, {"name": "bob"}, role=Role.ADMIN)
    [kept] = (await app.backend.requests.writes(WriteQuery(), limit=10)).writes  # type: ignore[union-attr]

    assert ("create_token", "bob") == (kept.operation, kept.target)


@pytest.mark.parametrize("body", [{}, {"name": "a b"}, {"name": "viewer-ann"}, {"name": "x", "role": "king"}])
async def test_a_token_that_cannot_be_is_refused(api: Api, body: dict[str, str]) -> None:
    assert 422 == code(await api.post(TOKENS, body, role=Role.ADMIN))[0]
    assert 3 == len(api.tokens.tokens())


async def test_where_no_tokens_are_kept_it_says_so(api: Api, app: Redrive) -> None:
    api.client._transport.app = AdminApi(app, Guard(app.clock, app.events, one_time="rdt_x"))
    answer = await api.client.get(TOKENS, headers={"authorization": "Bearer rdt_x"})

    assert (409, "unsupported") == code(answer)


async def test_who_asks_cannot_choose_the_address_that_is_counted() -> None:
    async def asgi(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for answer in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{answer}.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["client"][0].encode()})

    async with HttpServer(asgi) as server, httpx.AsyncClient() as client:
        told = await client.get(server.url, headers={"x-forwarded-for": "6.6.6.6"})

    assert "127.0.0.1" == told.text
