"""System E under kill -9: every mail is sent; only what was in hand may be sent twice, under the same Message-ID."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redrive.testing.mail import SmtpServer
from tests import redis as redis_servers
from tests.surfaces.conftest import clean_environment
from tests.systems.conftest import EMBEDDED
from tests.systems.loading import PATIENCE_S
from tests.systems.mail_gateway import on_redis
from tests.systems.test_readmes import ROOT

MAILS, KILLS, CONCURRENCY = 300, 3, 5


Start = Callable[[dict[str, str]], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a gateway; none outlives the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def started(environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (tmp_path / "gateway.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "examples.email_gateway"],
                cwd=tmp_path,
                env=clean_environment(PYTHONPATH=str(ROOT), REDRIVE_LOG_FORMAT="json", **environment),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
        return process

    yield started
    for process in processes:
        process.kill()
        process.wait()


async def until(server: SmtpServer, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(server.mails) < count:
            await asyncio.sleep(0.01)  # sleep: another process works


@pytest.mark.slow
@pytest.mark.parametrize("kind", [EMBEDDED, redis_servers.OLD])
async def test_a_killed_gateway_sends_every_mail_and_repeats_only_what_it_had_in_hand(
    kind: str, start: Start, tmp_path: Path
) -> None:
    from examples.email_gateway.outbox import Outbox

    broker = (
        {"REDRIVE_BROKER": f"sqlite:///{tmp_path}/gateway.db"}
        if kind == EMBEDDED
        else on_redis(redis_servers.empty_server(kind).url, tmp_path)
    )
    outbox = Outbox(tmp_path / "outbox.db")
    for number in range(MAILS):
        outbox.add(f"company-{number % 7}", (f"someone-{number}@x.example",), id=f"o-{number}")
    async with SmtpServer() as server:
        environment = {
            **broker,
            "OUTBOX_FILE": str(tmp_path / "outbox.db"),
            "SMTP_PORT": str(server.port),
            "LIMITER_MAX": "100000",
            "WORKER_CONCURRENCY": str(CONCURRENCY),
        }
        for kill in range(1, KILLS + 1):
            process = start(environment)
            await until(server, min(len(server.mails) + 20 * kill, MAILS - 1))
            process.kill()
            await asyncio.to_thread(process.wait)
        last = start(environment)
        async with asyncio.timeout(2 * PATIENCE_S):
            while any(row.status != "SENT" for row in outbox.rows()):
                await asyncio.sleep(0.1)  # sleep: another process works
        last.terminate()
        assert 0 == await asyncio.to_thread(last.wait, PATIENCE_S), (tmp_path / "gateway.log").read_text()

    times = Counter(str(mail.message["message-id"]).partition("@")[0].strip("<") for mail in server.mails)
    assert {f"o-{number}" for number in range(MAILS)} == set(times)
    assert sum(times.values()) - MAILS <= KILLS * CONCURRENCY
