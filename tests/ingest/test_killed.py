"""WH-08: a gateway killed between enqueuing and answering. The sender's repeat leads to exactly one message."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redrive import Redrive
from tests.ingest.client import signed

BODY = b'{"n":1}'
WAIT_S = 60.0


@contextmanager
def gateway(port_file: Path, database: Path, moment: str, root: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, and the port it chose."""
    command = [sys.executable, "-m", "tests.ingest.doomed_gateway", str(port_file), str(database), moment]
    process = subprocess.Popen(command, cwd=root)
    try:
        limit = time.monotonic() + WAIT_S
        while not port_file.exists():
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.02)  # sleep: until the file is looked for again
        yield process, int(port_file.read_text())
    finally:
        process.kill()
        process.wait()


def post(port: int) -> tuple[int, bool]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    headers = [(name.decode(), value.decode()) for name, value in signed(BODY, timestamp=str(int(time.time())))]
    try:
        connection.request("POST", "/webhooks/courier-x", body=BODY, headers=dict(headers))
        response = connection.getresponse()
        return response.status, json.loads(response.read())["duplicate"]
    finally:
        connection.close()


@pytest.mark.parametrize(("moment", "was_enqueued"), [("before", False), ("after", True)])
async def test_wh08_the_repeat_after_a_kill_leads_to_exactly_one_message(
    moment: str, was_enqueued: bool, tmp_path: Path, root: Path
) -> None:
    database = tmp_path / "hooks.db"

    with gateway(tmp_path / "first", database, moment, root) as (first, port):
        with pytest.raises((http.client.HTTPException, OSError)):
            post(port)
        assert -signal.SIGKILL == first.wait(WAIT_S)
    with gateway(tmp_path / "second", database, moment, root) as (_, port):
        repeat = post(port)
        again = post(port)

    async with Redrive("looking", broker=f"sqlite:///{database}") as app:
        queued = await app.backend.broker.peek("hooks", limit=10)
    assert [(202, was_enqueued), (202, True)] == [repeat, again]
    assert [BODY] == [message.body for message in queued]
