"""A pass over a dead-letter queue, started and followed over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive.core.access import Role
from redrive.core.letters.selection import Selection
from redrive.runtime.app import Redrive
from redrive.testing.samples import QUEUE
from tests.web.conftest import Api, code

DEAD = "old.dead"
PATH = f"/api/v1/queues/{DEAD}"


async def ended(api: Api) -> dict[str, Any]:
    """The pass, once this process is done with it."""
    clock: Any = api.api._app.clock
    await clock.run_until(lambda: not api.api._runners.tasks)
    return (await api.get(f"{PATH}/collect")).json()


async def letters(app: Redrive) -> list[str]:
    return [each.queue for each in (await app.backend.letters.find(Selection(), limit=100)).letters]


async def test_a_pass_takes_everything_into_the_store(api: Api, app: Redrive) -> None:
    for number in range(3):
        await app.publish(DEAD, {"n": number}, headers={"x-first-death-queue": "refunds"})

    looked = (await api.get(f"{PATH}/collectable", Role.OPERATOR, params={"limit": 2})).json()
    untouched = await letters(app)
    begun = await api.post(f"{PATH}/collect", {"from_queue": "refunds"})
    done = await ended(api)

    assert (2, []) == (len(looked["letters"]), untouched)
    assert (202, f"{PATH}/collect") == (begun.status_code, begun.headers["location"])
    assert ("running", "operator-ann") == (begun.json()["state"], begun.json()["actor"])
    assert ("done", 3, 3, {"refunds": 3}, None) == tuple(
        done[name] for name in ("state", "taken", "new", "by_queue", "error")
    )
    assert None is not done["ended_at"]
    assert ["refunds"] * 3 == await letters(app)


async def test_one_pass_at_a_time(api: Api, app: Redrive) -> None:
    await app.publish(DEAD, {})

    begun = [(await api.post(f"{PATH}/collect")).json() for _ in range(3)]
    tasks = len(api.api._runners.tasks)
    await ended(api)

    assert (1, 1) == (tasks, len({each["started_at"] for each in begun}))


async def test_what_is_limited_leaves_the_rest(api: Api, app: Redrive) -> None:
    for number in range(3):
        await app.publish(DEAD, {"n": number})

    await api.post(f"{PATH}/collect", {"limit": 2})
    done = await ended(api)

    assert (2, 2) == (done["taken"], len(await letters(app)))


@pytest.mark.parametrize("what", ["collect", "collectable"])
async def test_a_queue_of_work_is_not_collected(api: Api, app: Redrive, what: str) -> None:
    await app.publish(QUEUE, {})
    method = "POST" if what == "collect" else "GET"

    refused = await api.ask(method, f"/api/v1/queues/{QUEUE}/{what}")
    unknown = await api.ask(method, f"/api/v1/queues/nobody/{what}")

    assert (422, 404) == (code(refused)[0], code(unknown)[0])
    assert [] == await letters(app)


async def test_before_the_first_pass_there_is_none(api: Api) -> None:
    assert 404 == code(await api.get(f"{PATH}/collect"))[0]


async def test_a_pass_that_fails_says_why(api: Api, app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.errors import BrokerUnavailableError

    async def away(*given: Any, **named: Any) -> Any:
        raise BrokerUnavailableError("The file is locked. Nothing was changed.")

    await app.publish(DEAD, {})
    monkeypatch.setattr(app.backend.letters, "put", away)
    await api.post(f"{PATH}/collect")
    done = await ended(api)

    assert "failed" == done["state"]
    assert "The file is locked" in done["error"]


async def test_a_pass_that_meets_a_bug_has_failed_and_is_told(
    api: Api, app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*given: Any, **named: Any) -> Any:
        raise KeyError("card 4111")

    await app.publish(DEAD, {})
    with monkeypatch.context() as patched:
        patched.setattr(app.backend.letters, "put", broken)
        await api.post(f"{PATH}/collect")
        failed = await ended(api)
    await api.post(f"{PATH}/collect")

    assert ("failed", True) == (failed["state"], failed["error"].startswith("A bug ended it: KeyError."))
    assert [{"operation": "collect_queue", "error_type": "KeyError"}] == api.named("api.failed")
    assert "running" == (await api.get(f"{PATH}/collect")).json()["state"]


async def test_a_server_that_stops_says_so_and_loses_nothing(api: Api, app: Redrive) -> None:
    """What is being stored is stored whole, then acknowledged."""
    await app.publish(DEAD, {})
    begun, may_go_on = asyncio.Event(), asyncio.Event()
    real = app.backend.letters.put

    async def held(*given: Any) -> None:
        begun.set()
        await may_go_on.wait()
        await real(*given)

    app.backend.letters.put = held  # type: ignore[method-assign]
    await api.post(f"{PATH}/collect")
    await begun.wait()
    stopping = asyncio.ensure_future(api.api._runners.stop())
    await asyncio.sleep(0)
    may_go_on.set()
    await stopping
    app.backend.letters.put = real  # type: ignore[method-assign]
    stopped = (await api.get(f"{PATH}/collect")).json()
    await api.post(f"{PATH}/collect")

    assert "stopped" == stopped["state"]
    assert 0 == (await ended(api))["new"]
    assert 1 == (await app.backend.letters.stats(Selection())).total
