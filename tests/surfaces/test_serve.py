"""`redrive serve` and `redrive token` as real processes: who gets in, a job over a kill, a graceful stop."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive.runtime.app import Redrive
from redrive.testing.samples import letter
from tests.surfaces.conftest import Cli, Process

Start = Callable[..., Process]
SERVE = ("serve", "shop:app", "--port", "0", "--json")


def ask(url: str, token: str | None, body: Any = None, **headers: str) -> tuple[int, Any]:
    given = {"content-type": "application/json", **headers}
    given |= {} if token is None else {"authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, given), timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


async def asked(*given: Any, **headers: str) -> tuple[int, Any]:
    return await asyncio.to_thread(ask, *given, **headers)


async def announced(process: Process) -> dict[str, Any]:
    await process.url()
    return json.loads(process.text().splitlines()[0])


async def put(here: Path, count: int) -> None:
    async with Redrive("shop", f"sqlite:///{here / 'shop.db'}") as app:
        # A consumer asked once: the broker knows the queue.
        await app.backend.broker.receive("orders", limit=1, lease_ms=1_000, worker="w0", wait_ms=0)
        died_at = app.clock.now() - 60_000
        await app.backend.letters.put([letter(f"dl_{number}", died_at=died_at) for number in range(count)])


async def test_on_this_machine_a_one_time_token_is_printed_and_logged_nowhere(start: Start, here: Path) -> None:
    process = start(*SERVE)
    told = await announced(process)
    me = f"{told['url']}/api/v1/me"
    await process.until(lambda: ask(f"{told['url']}/api/v1/queues", told["token"])[0] == 200)
    good, bad = await asked(me, told["token"]), await asked(me, None)
    guess = await asked(me, "rdt_this-is-a-guess")
    await asked(f"{told['url']}/api/v1/queues/orders/pause", told["token"], {})
    await process.event("api.written", operation="pause_queue", actor="one-time", status=200)
    process.tell()

    assert (200, "admin") == (good[0], good[1]["role"])
    assert [401, 401] == [bad[0], guess[0]]
    assert 0 == await process.ended()
    assert 1 == process.text().count(told["token"])
    assert "this-is-a-guess" not in process.text()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_elsewhere_it_does_not_start_without_a_token(cli: Cli, host: str) -> None:
    refused = cli("serve", "shop:app", "--host", host, "--port", "0", "--json")

    assert (2, "configuration") == (refused.code, refused.error["code"])
    assert "redrive token create" in refused.error["hint"]
    assert "--no-admin" in refused.error["hint"]


async def test_tokens_are_made_listed_used_and_revoked(start: Start, redrive: Cli, here: Path) -> None:
    made = redrive("token", "create", "ann", "--role", "viewer", "--json").json
    again = redrive("token", "create", "ann", "--role", "admin", "--json")
    process = start("serve", "shop:app", "--host", "0.0.0.0", "--port", "0", "--json")
    told = await announced(process)
    me = f"{told['url']}/api/v1/me"

    first = await asked(me, made["token"])
    listed = redrive("token", "list", "--json").json["tokens"]
    revoked = redrive("token", "revoke", "ann", "--json")
    second = await asked(me, made["token"])
    process.tell()

    assert None is told["token"]
    assert (2, 200, "ann") == (again.code, first[0], first[1]["name"])
    assert [("ann", "viewer")] == [(each["name"], each["role"]) for each in listed]
    assert (0, 401) == (revoked.code, second[0])
    file = here / "redrive-tokens.toml"
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert made["token"] not in file.read_text() + process.text()
    assert 0 == await process.ended()


async def test_a_broker_alone_is_enough(start: Start, here: Path) -> None:
    await put(here, 2)
    process = start("serve", "sqlite:///shop.db", "--port", "0", "--json")
    told = await announced(process)
    await process.until(lambda: ask(f"{told['url']}/api/v1/letters", told["token"])[0] == 200)
    letters = (await asked(f"{told['url']}/api/v1/letters", told["token"]))[1]["letters"]
    process.tell()

    assert ["dl_0", "dl_1"] == [each["id"] for each in letters]
    assert 0 == await process.ended()


async def test_without_the_api_nothing_of_it_is_there(start: Start) -> None:
    process = start(*SERVE, "--no-admin")
    told = await announced(process)

    def status() -> int:
        try:
            return int(urllib.request.urlopen(f"{told['url']}/api/v1/me", timeout=30).status)
        except urllib.error.HTTPError as error:
            return error.code

    found = await asyncio.to_thread(status)
    process.tell()

    assert (404, False) == (found, "token" in told)
    assert 0 == await process.ended()


async def test_a_job_outlives_a_kill_of_the_server_that_made_it(start: Start, redrive: Cli, here: Path) -> None:
    """Killed while it sends: the next server goes on with it by a resume, nothing is lost and nothing sent twice."""
    await put(here, 400)
    first = start(*SERVE)
    told = await announced(first)
    await first.until(lambda: ask(f"{told['url']}/api/v1/letters", told["token"])[0] == 200)
    paced = {"all": True, "options": {"rate_per_s": 100}}
    status, made = await asked(f"{told['url']}/api/v1/jobs", told["token"], paced, **{"idempotency-key": '"campaign"'})
    job = f"/api/v1/jobs/{made['job']['id']}"
    await first.until(lambda: ask(told["url"] + job, told["token"])[1]["job"]["sent"] > 0)
    first.tell(signal.SIGKILL)
    await first.ended()

    second = start(*SERVE)
    told = await announced(second)
    await second.until(lambda: ask(told["url"] + job, told["token"])[0] == 200)
    before = (await asked(told["url"] + job, told["token"]))[1]["job"]["sent"]
    again = await asked(told["url"] + job + "/resume", told["token"], {})
    await second.until(lambda: ask(told["url"] + job, told["token"])[1]["job"]["state"] == "done")
    after = (await asked(told["url"] + job, told["token"]))[1]["job"]
    second.tell()

    assert (202, 202) == (status, again[0])
    assert 0 < before < 400
    assert (400, 0) == (after["sent"], after["pending"])
    queues = redrive("queues", "list", "--app", "shop:app", "--json").json["queues"]
    assert 400 == next(each["ready"] for each in queues if each["queue"] == "orders")
    assert 0 == await second.ended()


async def test_a_stop_ends_open_streams_at_once(start: Start, here: Path) -> None:
    await put(here, 3)
    process = start(*SERVE)
    told = await announced(process)
    await process.until(lambda: ask(f"{told['url']}/api/v1/letters", told["token"])[0] == 200)
    slow = {"all": True, "options": {"rate_per_s": 0.001}}
    _, made = await asked(f"{told['url']}/api/v1/jobs", told["token"], slow)
    port = int(told["url"].rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = f"/api/v1/jobs/{made['job']['id']}/events"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {told['token']}\r\n\r\n".encode())
    await reader.readuntil(b"event: progress")

    process.tell()
    rest = await reader.read()
    writer.close()

    # The chunk that ends an answer: it was ended, not cut off.
    assert rest.endswith(b"0\r\n\r\n")
    assert 0 == await process.ended()
