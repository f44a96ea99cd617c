"""The API inside another application, under any path."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from redrive.core.access import Role
from redrive.runtime.app import Redrive
from redrive.web.admin import beside
from tests.web.conftest import Api, code, put_letters


@pytest.fixture
def url() -> str:
    return "memory://"


@pytest.mark.parametrize("prefix", ["/ops", "/a b/ö", "/api/v1"])
async def test_it_answers_below_its_mount_and_says_where_it_is(api: Api, app: Redrive, prefix: str) -> None:
    await put_letters(app, 1)
    await app.publish("a/b", {})
    outer = Starlette(routes=[Mount(prefix, app=api.api), Route("/own", lambda _: PlainTextResponse("own"))])
    headers = {"authorization": f"Bearer {api.secrets[Role.ADMIN]}"}

    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://x", headers=headers) as client:
        queue = await client.get(f"{prefix}/api/v1/queues/a%2Fb")
        made = await client.post(f"{prefix}/api/v1/jobs", json={"all": True})
        job = await client.get(made.headers["location"])
        document = (await client.get(f"{prefix}/openapi.json")).json()
        own = await client.get("/own")
        nothing = await client.get(f"{prefix}/api/v1/nothing")

    assert (200, "a/b") == (queue.status_code, queue.json()["queue"])
    assert (202, 200) == (made.status_code, job.status_code)
    assert prefix == document["servers"][0]["url"]
    assert "own" == own.text
    assert (404, "no_such_path") == code(nothing)


async def test_beside_another_app_it_takes_its_own_paths_only(api: Api) -> None:
    async def other(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("other")(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(beside(api.api, other)), base_url="http://x") as client:
        found = {path: (await client.get(path)).status_code for path in ("/", "/metrics", "/api/v2/x", "/api/v1/me")}

    assert {"/": 200, "/metrics": 200, "/api/v2/x": 200, "/api/v1/me": 401} == found
