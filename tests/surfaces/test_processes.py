"""`redrive up`, `work`, `serve` as real processes: signals, probes, several processes, and every command once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from redrive.runtime.app import Redrive
from redrive.testing.samples import QUEUE
from tests.surfaces.conftest import Cli, Process, get, put

APP = ("--app", "shop:app")
Start = Callable[..., Process]


async def fetch(url: str) -> tuple[int, str]:
    return await asyncio.to_thread(get, url)


def number(metrics: str, series: str) -> float:
    """The value of one series; 0 where it is absent."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_up_works_serves_and_drains(start: Start, redrive: Cli, here: Path) -> None:
    process = start("up", "shop:app", "--port", "0", "--json")
    url = await process.url()
    assert 0 == redrive("publish", "orders", '{"n": 1}', *APP).code
    assert 0 == redrive("publish", "orders", '{"bad": "no such customer"}', *APP).code

    await process.event("delivery.dead_lettered", queue=QUEUE)
    processed = 'redrive_deliveries_total{outcome="processed",queue="orders"}'
    await process.until(lambda: number(get(f"{url}/metrics")[1], processed) == 1)
    ready, mounted, metrics = await fetch(f"{url}/readyz"), await fetch(f"{url}/hello"), await fetch(f"{url}/metrics")
    process.tell()

    assert (200, True) == (ready[0], json.loads(ready[1])["ready"])
    assert (200, "hello") == mounted
    assert 1 == number(metrics[1], 'redrive_deliveries_total{outcome="retried",queue="orders"}')
    assert 1 == number(metrics[1], 'redrive_deliveries_total{outcome="dead_lettered",queue="orders"}')
    assert 3 == number(metrics[1], 'redrive_deliveries_taken_total{queue="orders"}')
    assert 1 == number(metrics[1], "redrive_dlq_size")
    assert 0 == await process.ended()


async def test_the_whole_story_from_the_shell(start: Start, redrive: Cli, here: Path) -> None:
    """Published, dead with a reason, the cause fixed, sent back, processed, closed."""
    process = start("work", "shop:app")
    redrive("publish", "orders", '{"bad": "no such customer"}', "--message-id", "m-1", *APP)
    await process.event("delivery.dead_lettered", message_id="m-1")
    (dead,) = redrive("dlq", "list", *APP, "--json").json["letters"]
    (here / "fixed").touch()

    sent = redrive("dlq", "redrive", "orders.dead", "--yes", *APP, "--json").json

    assert "no such customer" in dead["reason_text"]
    assert ("done", 1) == (sent["job"]["state"], sent["job"]["sent"])
    await process.until(lambda: process.text().count("handled m-1 1") == 2)
    process.tell()
    assert 0 == await process.ended()
    closed = redrive("dlq", "list", "--state", "closed", *APP, "--json").json["letters"]
    assert [dead["id"]] == [found["id"] for found in closed]


async def test_a_stopped_worker_finishes_what_runs(start: Start, redrive: Cli) -> None:
    redrive("publish", "orders", '{"slow": 1}', "--message-id", "m-1", *APP)
    process = start("work", "shop:app")
    await process.until(lambda: "handled m-1 1" in process.text())

    process.tell()

    assert 0 == await process.ended()
    assert {"worker.draining", "worker.stopped"} <= {line.get("event") for line in process.lines()}
    assert [] == [q for q in redrive("queues", "list", *APP, "--json").json["queues"] if q["leased"] or q["ready"]]


async def test_a_second_signal_stops_at_once_and_costs_no_attempt(start: Start, redrive: Cli) -> None:
    redrive("publish", "orders", '{"slow": 60}', "--message-id", "m-1", *APP)
    process = start("work", "shop:app")
    await process.until(lambda: "handled m-1 1" in process.text())

    process.tell(signal.SIGINT)
    await process.event("worker.draining")
    await asyncio.sleep(0.2)  # sleep: sooner, it would be an echo of the first
    process.tell(signal.SIGINT)

    assert 128 + signal.SIGINT == await process.ended()
    again = start("work", "shop:app", "--queues", "orders")
    await again.until(lambda: "handled m-1 1" in again.text())


async def test_a_signal_and_its_echo_are_one(start: Start, redrive: Cli) -> None:
    """`timeout`, and runners that pass a Ctrl-C on, tell a process twice at once."""
    redrive("publish", "orders", '{"slow": 1}', "--message-id", "m-1", *APP)
    process = start("work", "shop:app")
    await process.until(lambda: "handled m-1 1" in process.text())

    # Both are there when it goes on, however long the machine took to send them.
    for each in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        process.tell(each)

    assert 0 == await process.ended()
    assert 0 == redrive("queues", "list", *APP, "--json").json["queues"][0]["ready"]


async def test_a_grace_period_hands_back_what_does_not_end(start: Start, redrive: Cli) -> None:
    redrive("publish", "orders", '{"slow": 60}', "--message-id", "m-1", *APP)
    process = start("work", "shop:app", "--grace", "200ms")
    await process.until(lambda: "handled m-1 1" in process.text())

    process.tell()

    assert 0 == await process.ended()
    (orders, _) = redrive("queues", "list", *APP, "--json").json["queues"]
    assert (1, 0) == (orders["ready"], orders["leased"])


async def test_serve_serves_without_a_worker(start: Start, redrive: Cli) -> None:
    redrive("publish", "orders", "{}", *APP)
    process = start("serve", "shop:app", "--port", "0", "--json")
    url = await process.url()

    assert (200, "hello") == await fetch(f"{url}/hello")
    assert 200 == (await fetch(f"{url}/healthz"))[0]
    await process.until(lambda: get(f"{url}/readyz")[0] == 200)
    assert 1 == number((await fetch(f"{url}/metrics"))[1], 'redrive_queue_depth{queue="orders",state="ready"}')
    process.tell()
    assert 0 == await process.ended()


async def test_a_draining_worker_is_not_ready(start: Start, redrive: Cli) -> None:
    redrive("publish", "orders", '{"slow": 60}', "--message-id", "m-1", *APP)
    process = start("up", "shop:app", "--port", "0", "--json", "--grace", "60s")
    url = await process.url()
    await process.until(lambda: "handled m-1 1" in process.text())

    process.tell()
    await process.event("worker.draining")
    status, body = await fetch(f"{url}/readyz")
    await asyncio.sleep(0.2)  # sleep: sooner, it would be an echo of the first
    process.tell()

    assert 503 == status
    assert ["draining"] == [reason["code"] for reason in json.loads(body)["reasons"]]
    assert 128 + signal.SIGTERM == await process.ended()


async def test_a_broker_that_is_away_keeps_the_process_alive_and_not_ready(
    start: Start, redrive: Cli, here: Path
) -> None:
    (here / "shop.db").mkdir()
    process = start("up", "shop:app", "--port", "0", "--json")
    url = await process.url()
    await process.event("consumer.paused")

    health, ready = await fetch(f"{url}/healthz"), await fetch(f"{url}/readyz")
    (here / "shop.db").rmdir()
    await process.event("consumer.resumed", queue=QUEUE)
    await process.event("worker.started")
    await process.until(lambda: get(f"{url}/readyz")[0] == 200)
    process.tell()

    assert (200, 503) == (health[0], ready[0])
    assert json.loads(ready[1])["reasons"][0]["text"]
    assert 0 == await process.ended()


async def test_a_file_of_a_newer_redrive_pauses_the_process_and_is_left_alone(
    start: Start, redrive: Cli, here: Path
) -> None:
    redrive("publish", "orders", "{}", *APP)
    with closing(sqlite3.connect(here / "shop.db")) as file, file:
        file.execute("UPDATE redrive_meta SET value = 99 WHERE name = 'min_reader_version'")
        file.execute("INSERT OR IGNORE INTO redrive_meta (name, value) VALUES ('min_reader_version', 99)")

    process = start("up", "shop:app", "--port", "0", "--json")
    paused = await process.event("consumer.paused", queue=QUEUE)
    status, body = await fetch(f"{await process.url()}/readyz")
    refused = redrive("dlq", "list", *APP, "--json")
    process.tell()

    assert "schema_too_new" == paused["error_code"]
    assert (503, "schema_too_new") == (status, json.loads(body)["reasons"][0]["code"])
    assert (1, "schema_too_new") == (refused.code, refused.error["code"])
    assert "pip install" in refused.error["hint"]
    assert 0 == await process.ended()


async def test_a_stop_while_the_broker_is_away_is_obeyed(start: Start, here: Path) -> None:
    (here / "shop.db").mkdir()
    process = start("work", "shop:app")
    await process.event("consumer.paused")

    process.tell()

    assert 0 == await process.ended()


def test_a_port_that_is_taken_is_said(redrive: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        shown = redrive("serve", "shop:app", "--port", str(port), "--json")

    assert 2 == shown.code
    assert "another port" in shown.error["hint"]


async def test_several_processes_are_probed_and_counted_as_one(start: Start, redrive: Cli, here: Path) -> None:
    (here / "many.jsonl").write_text('{"n": 1}\n' * 500)
    process = start("work", "shop:app", "--processes", "2", "--http", "127.0.0.1:0", "--json")
    url = await process.url()
    await process.until(lambda: get(f"{url}/readyz")[0] == 200)
    started = await process.until(lambda: found if len(found := pids_of_workers(process)) == 2 else None)
    workers = set(started)

    redrive("publish", "orders", "--file", "many.jsonl", *APP)
    series = 'redrive_deliveries_total{outcome="processed",queue="orders"}'
    await process.until(lambda: number(get(f"{url}/metrics")[1], series) == 500)
    os.kill(min(workers), signal.SIGKILL)
    await process.event("process.exited", exit_code=-9)
    after = number((await fetch(f"{url}/metrics"))[1], series)
    await process.until(lambda: len(pids_of_workers(process)) == 3)
    process.tell()

    assert 2 == len(workers)
    assert 500 == after, "a counter never falls"
    assert 0 == await process.ended()


def pids_of_workers(process: Process) -> list[int]:
    """Of every worker that has started so far."""
    return [line["pid"] for line in process.lines() if line.get("event") == "worker.started"]


async def test_a_killed_redrive_is_taken_over_by_a_worker(
    start: Start, redrive: Cli, shop: Redrive, here: Path
) -> None:
    """`kill -9` of a running redrive: everything goes, nothing twice."""
    await put(shop, 30)
    killed = start("dlq", "redrive", "orders", "--rate", "3/s", "--yes", *APP, "--json")

    async def sent() -> int:
        jobs = await shop.backend.jobs.list(limit=1)
        return jobs[0].counts.sent if jobs else 0

    async with asyncio.timeout(60):
        while not 0 < await sent() < 30:
            await asyncio.sleep(0.02)  # sleep: another process sends at a rate
    killed.tell(signal.SIGKILL)
    await killed.ended()
    (job,) = await shop.backend.jobs.list(limit=1)
    left_over = job.counts.sent
    await shop.backend.jobs.save(job, lease_ms=0)  # as if its lease had ended: the test need not wait for that

    worker = start("work", "shop:app")
    await worker.event("redrive.job_changed", state="done")
    await worker.until(lambda: len(handled(worker)) == 30)
    worker.tell()

    assert 0 < left_over < 30
    assert {f"m-dl_{n:04}" for n in range(1, 31)} == set(handled(worker))
    assert 0 == await worker.ended()


async def test_ctrl_c_stops_a_redrive_and_no_worker_goes_on_with_it(start: Start, redrive: Cli, shop: Redrive) -> None:
    await put(shop, 30)
    process = start("dlq", "redrive", "orders", "--rate", "1/s", "--yes", *APP)
    async with asyncio.timeout(60):
        while not (jobs := await shop.backend.jobs.list(limit=1)) or not jobs[0].counts.sent:
            await asyncio.sleep(0.02)  # sleep: another process sends at a rate

    process.tell(signal.SIGINT)
    code = await process.ended()

    (job,) = await shop.backend.jobs.list(limit=1)
    assert (130, "aborted") == (code, job.state)
    assert 0 < job.counts.sent < 30
    assert f"redrive dlq resume {job.id}" in process.text()
    assert "Traceback" not in process.text()


def handled(process: Process) -> list[str]:
    """Ids of the messages a worker handled, with repeats."""
    return re.findall(r"^handled (\S+)", process.text(), re.MULTILINE)


async def test_every_command_answers_in_json_from_a_process_of_its_own(redrive: Cli, shop: Redrive, here: Path) -> None:
    await put(shop, 3)

    ran = {
        "publish": redrive("publish", "orders", "{}", *APP, "--json"),
        "queues": redrive("queues", "list", *APP, "--json"),
        "list": redrive("dlq", "list", *APP, "--json"),
        "show": redrive("dlq", "show", "dl_0001", *APP, "--json"),
        "stats": redrive("dlq", "stats", *APP, "--json"),
        "plan": redrive("dlq", "redrive", "orders", "--dry-run", *APP, "--json"),
        "redrive": redrive("dlq", "redrive", "dl_0001", "--yes", *APP, "--json"),
        "jobs": redrive("dlq", "jobs", *APP, "--json"),
        "review": redrive("dlq", "review", "dl_0002", "--yes", *APP, "--json"),
        "close": redrive("dlq", "close", "dl_0002", "--yes", *APP, "--json"),
        "restore": redrive("dlq", "restore", "dl_0002", "--yes", *APP, "--json"),
        "backup": redrive("backup", "saved.db", *APP, "--json"),
    }

    assert dict.fromkeys(ran, 0) == {name: done.code for name, done in ran.items()}
    assert all(isinstance(done.json, dict) for done in ran.values())
    assert dict.fromkeys(ran, "") == {name: done.err for name, done in ran.items()}


@pytest.mark.parametrize("answer", ["y\n", "n\n"])
async def test_a_question_on_a_terminal_is_answered(shop: Redrive, here: Path, answer: str) -> None:
    import pty
    import subprocess

    from tests.surfaces.conftest import COMMAND, clean_environment

    await put(shop, 2)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "dlq", "redrive", "orders", *APP],
        cwd=here, env=clean_environment(TERM="dumb"), stdin=follower, stdout=follower, stderr=follower,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while b"[y/N]" not in shown:
        shown += await asyncio.to_thread(os.read, leader, 4_096)
    os.write(leader, answer.encode())
    code = await asyncio.to_thread(process.wait, 60)
    os.close(leader)

    assert b"Send 2 letters back to orders?" in shown
    is_sent = len(await shop.backend.broker.peek(QUEUE, limit=5)) == 2
    assert (0, True) == (code, is_sent) if answer == "y\n" else (1, False) == (code, is_sent)
