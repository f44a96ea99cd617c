"""What was written over the API outlives the server that was killed, and so does an answer by its key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from redrive.core.letters.selection import Selection
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.samples import QUEUE
from tests.surfaces.conftest import Cli, Process
from tests.surfaces.test_serve import SERVE, announced, ask, asked, put

KEY = {"idempotency-key": '"k"'}
APP = ("--app", "shop:app")


async def test_a_key_and_the_record_outlive_the_server(
    cli: Cli, shop: Redrive, start: Callable[..., Process], here: Path
) -> None:
    await put(here, 2)
    cli("token", "create", "ann", "--role", "admin")
    token = cli("token", "create", "bob", "--role", "operator", "--json").json["token"]
    first, second = start(*SERVE), start(*SERVE)
    urls = [(await announced(process))["url"] for process in (first, second)]
    await first.until(lambda: ask(f"{urls[0]}/api/v1/queues", token)[0] == 200)
    await second.until(lambda: ask(f"{urls[1]}/api/v1/queues", token)[0] == 200)
    close, body = "/api/v1/letters/close", {"selection": {"ids": ["dl_0"]}}

    done = await asked(f"{urls[0]}{close}", token, body, **KEY)
    first.popen.kill()
    again = await asked(f"{urls[1]}{close}", token, body, **KEY)
    other = await asked(f"{urls[1]}{close}", token, {"selection": {"ids": ["dl_1"]}}, **KEY)
    await asked(f"{urls[1]}/api/v1/queues/{QUEUE}/messages", token, {"payload": {"id": 1}})
    second.popen.kill()
    listed = cli("audit", *APP)
    found = cli("audit", *APP, "--by", "bob", "--since", "1h", "--json").json
    page = cli("audit", *APP, "-n", "1", "--json").json
    rest = cli("audit", *APP, "--cursor", page["cursor"], "--json").json

    assert (200, 1) == (done[0], done[1]["changed"])
    assert done == again
    assert (422, "urn:redrive:error:key_reused") == (other[0], other[1]["type"])
    assert ["publish_message", "close_letters"] == [each["operation"] for each in found["writes"]]
    assert ["changed=1 refused=0"] == [each["result"] for each in rest["writes"]]
    assert "close_letters" in listed.out
    assert "No" in cli("audit", *APP, "--by", "nobody").err
    assert ["dl_1"] == [each.id async for each in Service(shop).whole(Selection(ids=("dl_1",)))]
