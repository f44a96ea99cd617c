"""The document and the answers hold to each other: schemathesis asks, and finds no 5xx and nothing undocumented."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, reject, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from redrive.core.access import Role
from redrive.core.letters.selection import Selection
from redrive.core.policy.fair import Fair
from redrive.core.redrive import JobOptions
from redrive.runtime.app import Redrive
from redrive.runtime.archive import Archive
from redrive.service import Service
from redrive.testing.samples import QUEUE
from redrive.web.admin import AdminApi, Guard
from redrive.web.admin.auth.tokens import TokenFile
from redrive.web.admin.openapi import document
from redrive.web.admin.operations import OPERATIONS
from tests.web.conftest import Api, put_letters

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 25
"""For each operation: the table has some thirty."""
HELD = ("letter_id", "job_id", "group", "queue", "archive")


@schemathesis.serializer("application/x-ndjson")
def as_lines(context: Any, value: Any) -> dict[str, bytes]:
    """Mostly no letters at all: what an import makes of real ones is tested elsewhere."""
    return {"data": value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")}


schema = schemathesis.openapi.from_dict(document())


class Shop:
    """The API over a store with something of everything, on a loop of its own."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        settings = {"archive": str(folder / "archive")}
        self.app = Redrive("shop", f"sqlite:///{folder / 'shop.db'}", settings=settings)
        self.app.consumer(QUEUE, fair_by=Fair())(_charge)
        tokens = TokenFile(folder / "tokens.toml")
        self.headers = {"Authorization": f"Bearer {tokens.add('fuzz', Role.ADMIN, created_at='')}"}
        self.api = AdminApi(self.app, Guard(self.app.clock, self.app.events, tokens=tokens))
        self.known: dict[str, str] = {"queue": QUEUE}
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        await self.app.open()
        [letter_id, *_] = await put_letters(self.app, 5)
        service = Service(self.app)
        view = await service.redrive(Selection(ids=(letter_id,)), JobOptions(), actor="ann", run=False)
        job = await service.abort(view.job.id, actor="ann")
        groups = await service.groups()
        group = groups.groups[0].fingerprint
        with Archive(self.archive_folder() / "some.jsonl") as archive:
            archive.write([view async for view in service.whole(Selection(), limit=2)])
        self.known |= {"archive": "some.jsonl"}
        self.known |= {"letter_id": letter_id, "job_id": job.job.id, "group": group}

    def archive_folder(self) -> Path:
        folder = Path(self.app.settings.archive)
        folder.mkdir(exist_ok=True)
        return folder

    def ask(self, method: str, url: str, **given: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self.api)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.request(method, url, **given)

        return self.loop.run_until_complete(asked())

    def close(self) -> None:
        self.loop.run_until_complete(self.api.close())
        self.loop.run_until_complete(self.app.close())
        self.loop.close()


async def _charge(order: dict) -> None: ...


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = Shop(tmp_path_factory.mktemp("shop"))
    yield made
    made.close()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_whatever_is_asked_the_answer_is_a_documented_one(case: Any, shop: Shop) -> None:
    for name in HELD:
        # Half of them are of something that is there; by length, for that is the same in every run.
        if name in case.path_parameters and len(case.path_parameters[name]) % 2:
            case.path_parameters[name] = shop.known[name]
    given = case.as_transport_kwargs(base_url="http://shop")
    given.pop("cookies", None)
    if isinstance(given.get("data"), str | bytes):
        given["content"] = given.pop("data")
    given["headers"] = {**dict(given.get("headers") or {}), **shop.headers}
    try:
        answer = shop.ask(given.pop("method"), given.pop("url"), **given)
    except httpx.InvalidURL:
        reject()  # longer than this client sends; the API's own limits have tests of their own

    case.validate_response(schemathesis.Response.from_httpx(answer, verify=False), checks=CHECKS)


def test_the_document_is_one_of_openapi_3_1_with_every_operation() -> None:
    found = document(root="/ops")

    assert "3.1.0" == found["openapi"]
    assert [{"url": "/ops"}] == found["servers"]
    assert {row.name for row in OPERATIONS} == {
        each["operationId"] for path in found["paths"].values() for each in path.values()
    }
    assert len(OPERATIONS) == len({row.name for row in OPERATIONS})


BODIES: dict[str, Any] = {
    "plan_job": {"all": True},
    "review_letters": {"all": True},
    "change_group": {"to": "acknowledged"},
    "set_limits": {"batch": 5, "rates": {"acme": "10/min"}},
    "pause_queue": {},
    "quarantine": {"tenants": ["acme"]},
    "release": {"tenants": ["acme"]},
    "publish_message": {"payload": {"id": 1}},
    "prune_letters": {"selection": {"ids": ["none"]}},
    "erase_letters": {"selection": {"tenant": "nobody"}},
    "restore_archive": {"dry_run": True},
}


async def test_answers_are_what_the_schemas_say_and_nothing_else(api: Api, app: Redrive) -> None:
    """To the last field: what a schema does not have is lost on the way through it."""
    [letter_id, _, last_id] = await put_letters(app, 3)
    made = await api.post("/api/v1/jobs", {"selection": {"ids": [letter_id]}})
    last = {"selection": {"ids": [last_id]}, "archive": True}
    pruned = await api.post("/api/v1/letters/prune", last, role=Role.ADMIN)
    names = {"letter_id": letter_id, "queue": QUEUE, "job_id": made.json()["job"]["id"]}
    names["archive"] = pruned.json()["archive"]
    names["group"] = (await api.get("/api/v1/groups")).json()["groups"][0]["group"]
    rows = [
        row for row in OPERATIONS if row.media_type == "application/json" and (row.body is None or row.name in BODIES)
    ]

    seen, lost = set(), {}
    for row in rows:
        answer = await api.ask(row.method, row.path.format(**names), Role.ADMIN, json=BODIES.get(row.name))
        if answer.status_code == 200:
            seen.add(row.name)
            if answer.json() != msgspec.to_builtins(msgspec.convert(answer.json(), row.answer)):
                lost[row.name] = answer.json()

    assert {} == lost
    # Parked messages are on RabbitMQ only, and not every broker knows tenants.
    assert {row.name for row in rows} - seen <= {
        *("list_parked", "peek_parked", "queue_tenants"),
        *("list_collectable", "show_collect"),  # of queues this app does not consume; see test_collecting.py
    }


async def test_the_document_is_open_to_all(api: Api) -> None:
    answer = await api.get("/openapi.json", None)

    assert (200, "3.1.0") == (answer.status_code, answer.json()["openapi"])
