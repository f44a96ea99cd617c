"""The admin API of a small shop, in this process, with one token for each role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from redrive.core.access import RedactRule, Role
from redrive.core.policy.fair import Fair
from redrive.runtime.app import Redrive
from redrive.runtime.events import Event
from redrive.testing.clock import FAKE_EPOCH, FakeClock
from redrive.testing.samples import QUEUE, letter
from redrive.web.admin import AdminApi, Guard
from redrive.web.admin.auth.tokens import TokenFile

DIED_AT = FAKE_EPOCH - 60_000
URL = "http://shop"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture
def redact() -> tuple[RedactRule, ...]:
    return ()


@pytest.fixture
def store() -> dict[str, str]:
    """The setting, where the broker has no store of its own."""
    return {}


@pytest_asyncio.fixture
async def app(url: str, clock: FakeClock, redact: Any, store: dict[str, str], tmp_path: Path) -> AsyncIterator[Redrive]:
    settings = {"redact": redact, "archive": str(tmp_path / "archive"), **store}
    shop = Redrive("shop", url, clock=clock, settings=settings)

    @shop.consumer(QUEUE, fair_by=Fair())
    async def charge(order: dict) -> None: ...

    async with shop:
        await shop.backend.broker.receive(QUEUE, limit=1, lease_ms=1_000, worker="w0", wait_ms=0)
        yield shop


@dataclass
class Api:
    """The API, and a client for each role (None: without a token)."""

    api: AdminApi
    tokens: TokenFile
    secrets: dict[Role, str]
    client: httpx.AsyncClient
    events: list[Event]

    async def ask(self, method: str, path: str, role: Role | None = Role.ADMIN, **given: Any) -> httpx.Response:
        headers = dict(given.pop("headers", {}))
        if role is not None:
            headers["authorization"] = f"Bearer {self.secrets[role]}"
        return await self.client.request(method, path, headers=headers, **given)

    async def get(self, path: str, role: Role | None = Role.VIEWER, **given: Any) -> httpx.Response:
        return await self.ask("GET", path, role, **given)

    async def post(self, path: str, body: Any = None, *, role: Role = Role.OPERATOR, **given: Any) -> httpx.Response:
        return await self.ask("POST", path, role, json={} if body is None else body, **given)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in self.events if event.name == name]


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal."""
    assert "application/problem+json" == answer.headers["content-type"]
    document = answer.json()
    assert document["status"] == answer.status_code
    return answer.status_code, document["type"].removeprefix("urn:redrive:error:")


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.toml")


@pytest_asyncio.fixture
async def api(app: Redrive, tokens: TokenFile) -> AsyncIterator[Api]:
    secrets = {role: tokens.add(f"{role}-ann", role, created_at="") for role in Role}
    made = AdminApi(app, Guard(app.clock, app.events, tokens=tokens))
    events: list[Event] = []
    app.events.subscribe(events.append)
    transport = httpx.ASGITransport(made, client=("192.0.2.1", 40_000))
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        yield Api(made, tokens, secrets, client, events)
    await made.close()


PutLetters = Callable[..., Any]


async def put_letters(app: Redrive, count: int, *, first: int = 1, **changes: object) -> list[str]:
    """So many letters of `orders`, each dead a millisecond after the one before; their ids, oldest first."""
    made = [letter(f"dl_{number:04}", died_at=DIED_AT + number, **changes) for number in range(first, first + count)]
    await app.backend.letters.put(made)
    return [found.id for found in made]
