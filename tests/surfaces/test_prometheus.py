"""A real Prometheus scrapes a real worker with the rules we print: it fires what `redrive alerts` says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from redrive.core.alerts import Group, as_yaml, rule_file
from redrive.testing.servers.processes import free_ports
from redrive.testing.servers.promtool import installed_promtool
from tests.surfaces.conftest import PATIENCE_S, Cli, Process, get

GROUPS = [word for group in Group for word in ("--group", str(group))]
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
- job_name: shop
  static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
APP = """
from redrive import DeadLetter, Redrive

app = Redrive("shop", broker="sqlite:///shop.db")


@app.consumer("orders")
async def charge(order: dict) -> None:
    if order["n"] % 10 == 0:
        raise DeadLetter("never")
"""


@pytest.fixture
def prometheus() -> Path:
    promtool = installed_promtool()
    found = None if promtool is None else promtool.with_name("prometheus")
    if found is not None and found.exists():
        return found
    missing = "Prometheus is not on this machine. Run (as root, on Debian): python -m redrive.testing.servers"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


@asynccontextmanager
async def running(program: Path, folder: Path, *, port: int, target: int) -> AsyncIterator[str]:
    """A Prometheus on this port, scraping the target; its URL."""
    (folder / "prometheus.yml").write_text(CONFIG.format(port=target))
    (folder / "rules.yml").write_text(as_yaml(rule_file(tuple(Group))))
    command = [
        program,
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def until(ask: Callable[[], Any]) -> Any:
    """What it gives once that is something."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                found = await asyncio.to_thread(ask)
            except OSError:
                found = None  # it is starting
            if found:
                return found
            await asyncio.sleep(0.2)  # sleep: another process scrapes once a second


async def test_prometheus_fires_what_redrive_alerts_says(
    prometheus: Path, cli: Cli, here: Path, start: Callable[..., Process]
) -> None:
    """Case MA-03."""
    (here / "shop.py").write_text(APP)
    worker_port, port = free_ports(2)
    (here / "orders.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(1_100)))
    worker = start("work", "shop:app", "--http", f"127.0.0.1:{worker_port}")
    await worker.event("worker.started")
    metrics = f"http://127.0.0.1:{worker_port}/metrics"

    async with running(prometheus, here, port=port, target=worker_port) as url:

        def value(query: str) -> float | None:
            found = json.loads(get(f"{url}/api/v1/query?query={quote(query)}")[1])["data"]["result"]
            return float(found[0]["value"][1]) if found else None

        def firing() -> set[str]:
            alerts = json.loads(get(f"{url}/api/v1/alerts")[1])["data"]["alerts"]
            return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

        await until(lambda: value('redrive_deliveries_total{outcome="processed"} == 0') is not None)
        assert set() == firing()
        assert 0 == cli("publish", "orders", "--file", "orders.jsonl", "--app", "shop:app").code
        await until(lambda: value("redrive_dlq_size") == 110)
        wanted = {"RedriveDeadLettersMany", "RedriveDeadLetterRateHigh", "RedriveNewDeadLetters"}
        await until(lambda: firing() == wanted)
        ours = cli("alerts", "--app", "shop:app", "--from", metrics, *GROUPS, "--json").json
        labels = json.loads(get(f"{url}/api/v1/alerts")[1])["data"]["alerts"][0]["labels"]

    assert wanted == {f"Redrive{alert['alert']}" for alert in ours["firing"]}
    assert ("shop", True) == (labels["job"], labels["severity"] in ("warning", "critical"))
