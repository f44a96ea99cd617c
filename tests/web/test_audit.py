"""Every write over the API leaves a record that lasts: begun before it is carried out, with its result afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redrive.core.access import Role
from redrive.core.audit import Answer, WriteQuery
from redrive.errors import BrokerUnavailableError
from redrive.runtime.app import Redrive
from redrive.testing.clock import FakeClock
from redrive.testing.samples import QUEUE
from redrive.web.admin.operations import OPERATIONS, Operation
from redrive.web.admin.writes import KEPT_MS, TIDY_MS
from tests.web.conftest import Api, code, put_letters
from tests.web.test_roles import path

BODIES: dict[str, Any] = {
    "publish_message": {"payload": "s3cret"},
    "create_token": {"name": "bob", "role": "viewer"},
    "erase_letters": {"headers": {"who": "s3cret"}},
    **{name: {} for name in ("redrive_parked", "restore_archive", "collect_queue")},
}
AUDIT = "/api/v1/audit"
PAUSE = f"/api/v1/queues/{QUEUE}/pause"


async def writes(api: Api, **query: Any) -> list[dict[str, Any]]:
    return (await api.get(AUDIT, Role.ADMIN, params=query)).json()["writes"]


async def test_who_did_what_when_on_what_and_how_it_ended(api: Api, app: Redrive, clock: FakeClock) -> None:
    ids = await put_letters(app, 3)

    answer = await api.post("/api/v1/letters/close", {"selection": {"ids": ids[:2]}, "note": "n0te"})
    await clock.advance(1_000)
    refused = await api.post("/api/v1/queues/nobody/pause", role=Role.ADMIN)
    made = await api.post("/api/v1/jobs", {"selection": {"ids": ids[2:]}})
    job, second, first = await writes(api)

    assert {
        "at": "2023-11-14T22:13:20.000Z",
        "id": answer.headers["request-id"],
        "actor": "operator-ann",
        "role": "operator",
        "operation": "close_letters",
        "target": "",
        "address": "192.0.2.1",
        "status": 200,
        "result": "changed=2 refused=0",
    } == {**first, "at": "2023-11-14T22:13:20.000Z"}
    assert ("nobody", 404, "not_found") == (second["target"], second["status"], second["result"])
    assert refused.headers["request-id"] == second["id"]
    assert made.headers["location"] in job["result"]
    assert first["at"] < second["at"]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in OPERATIONS if row.is_audited])
@pytest.mark.parametrize("url", ["memory://"])
async def test_every_write_is_kept_and_nothing_that_is_a_secret(api: Api, row: Operation) -> None:
    secret = "s3cret"
    body = None if row.body is None else BODIES.get(row.name, {"note": secret})
    await api.ask(row.method, path(row), Role.ADMIN, json=body, headers={"idempotency-key": f'"{secret}"'})

    [kept] = await writes(api)

    assert (row.name, "admin-ann", "admin") == (kept["operation"], kept["actor"], kept["role"])
    assert isinstance(kept["status"], int)
    assert secret not in json.dumps(kept)
    assert not [token for token in api.secrets.values() if token in json.dumps(kept)]
    assert [kept["id"]] == [each["request_id"] for each in api.named("api.written")]


async def test_what_only_looks_is_not_kept(api: Api, app: Redrive) -> None:
    await put_letters(app, 1)
    await api.get("/api/v1/letters")
    await api.post("/api/v1/jobs/plan", {"all": True}, role=Role.VIEWER)
    await api.post(PAUSE, role=Role.VIEWER)

    assert [] == await writes(api)


async def test_the_record_is_walked_and_asked(api: Api, clock: FakeClock) -> None:
    for role in (Role.OPERATOR, Role.ADMIN, Role.OPERATOR):
        await api.post(PAUSE, role=role)
        await clock.advance(1_000)

    page = (await api.get(AUDIT, Role.ADMIN, params={"limit": 2})).json()
    rest = (await api.get(AUDIT, Role.ADMIN, params={"limit": 2, "cursor": page["cursor"]})).json()
    since = page["writes"][0]["at"]

    assert (2, 1, None) == (len(page["writes"]), len(rest["writes"]), rest["cursor"])
    assert 1 == len(await writes(api, actor="admin-ann"))
    assert 3 == len(await writes(api, target=QUEUE, operation="pause_queue"))
    assert 1 == len(await writes(api, since=since))
    assert 2 == len(await writes(api, until=since))
    assert 422 == code(await api.get(AUDIT, Role.ADMIN, params={"cursor": "junk"}))[0]


class Away:
    """A request store that cannot be written; the first `good` writes still can."""

    def __init__(self, real: Any, good: int) -> None:
        self._real = real
        self._good = good

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def put(self, write: Any) -> None:
        if self._good <= 0:
            raise BrokerUnavailableError("The disk is full. Nothing was changed.")
        self._good -= 1
        await self._real.put(write)


async def test_what_cannot_be_recorded_is_not_done(api: Api, app: Redrive) -> None:
    real = app.backend.requests
    object.__setattr__(app.backend, "requests", Away(real, 0))

    refused = await api.post(PAUSE)
    object.__setattr__(app.backend, "requests", real)

    assert (503, "broker_unavailable") == code(refused)
    assert None is (await api.get(f"/api/v1/queues/{QUEUE}")).json()["paused"]


async def test_a_result_that_cannot_be_recorded_leaves_it_begun(api: Api, app: Redrive) -> None:
    real = app.backend.requests
    object.__setattr__(app.backend, "requests", Away(real, 1))

    done = await api.post(PAUSE)
    object.__setattr__(app.backend, "requests", real)
    [kept] = await writes(api)

    assert (200, None) == (done.status_code, kept["status"])
    assert ["pause_queue"] == [each["operation"] for each in api.named("api.failed")]


async def test_what_is_old_goes(api: Api, app: Redrive, clock: FakeClock) -> None:
    store: Any = app.backend.requests
    await api.post(PAUSE)
    await clock.leap_to(clock.now() + KEPT_MS + 1)

    await api.post(PAUSE)

    assert 1 == len((await store.writes(WriteQuery(), limit=10)).writes)
    assert TIDY_MS < KEPT_MS


async def test_many_old_answers_go_with_the_next_writes(
    api: Api, app: Redrive, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.web.admin.writes.TIDY_BATCH", 10)
    store: Any = app.backend.requests
    answer = Answer(status=200, body=b"{}")
    for number in range(25):
        await store.keep(f"k{number}", answer, expires_at=clock.now())

    for _ in range(3):
        await api.post(PAUSE)
    await store.keep("k-late", answer, expires_at=clock.now())
    await api.post(PAUSE)

    assert 1 == await store.prune(now=clock.now(), before=0, limit=100)
