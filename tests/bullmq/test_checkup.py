"""What a real server says of itself, and what doctor, metrics and alerts make of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redrive.alerting import look_once
from redrive.brokers.bullmq.checkup import read
from redrive.core.doctor import Level, check_redis, memory_of
from redrive.doctor import examine
from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.runtime.app import Redrive
from redrive.runtime.settings import Settings
from redrive.testing.servers.redis import RedisNode, ServerFailed
from redrive.web import Probes
from tests.service.test_metrics import scrape

MB = 1024 * 1024
BESIDE = {"letters_are_local": Level.INFO, "no_file": Level.INFO}
"""What is said of the store for letters, which is no business of the server."""


@pytest.fixture
def no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory in which no app has left its file."""
    monkeypatch.chdir(tmp_path)


def codes(found: Any) -> dict[str, Level]:
    return {finding.code: finding.level for finding in found}


def settings(url: str) -> Settings:
    return Settings(broker=url)


def fill(node: RedisNode, bytes_each: int = 100_000) -> int:
    """Write until the server refuses; how often it refused (once)."""

    def write() -> None:
        for number in range(10_000):
            node.ask("SET", f"k{number}", b"x" * bytes_each)

    with pytest.raises(ServerFailed, match="OOM"):
        write()
    return 1


async def test_a_server_with_the_wanted_settings_has_no_finding(redis_alone: RedisNode, no_file: None) -> None:
    redis_alone.ask("CONFIG", "SET", "maxmemory", "512mb")

    found = await examine(Redrive("mail", settings=settings(redis_alone.url)), strict=True)

    assert BESIDE == codes(found.findings)
    facts = dict(found.facts)
    assert ("master", "always", 512 * MB, 0) == (
        facts["role"], facts["appendfsync"], facts["memory_max_bytes"], facts["oom_errors"],
    )  # fmt: skip
    assert 0 < facts["memory_used_bytes"] < 64 * MB


CHANGES = {
    ("appendfsync", "everysec"): "redis_every_second",
    ("appendfsync", "no"): "redis_no_fsync",
    ("appendonly", "no"): "redis_no_aof",
    ("no-appendfsync-on-rewrite", "yes"): "redis_no_fsync_on_rewrite",
    ("maxmemory-policy", "volatile-lru"): "redis_eviction",
    ("aof-use-rdb-preamble", "no"): "redis_no_preamble",
    ("auto-aof-rewrite-percentage", "0"): "redis_no_rewrite",
    ("auto-aof-rewrite-min-size", "1gb"): "redis_late_rewrite",
    ("maxmemory", "0"): "redis_no_limit",
    ("maxmemory", "64mb"): "redis_small",
}


async def test_each_setting_is_read_as_the_server_has_it(redis_alone: RedisNode) -> None:
    for (name, value), code in CHANGES.items():
        for good, wanted in (("maxmemory", "512mb"), ("appendfsync", "always"), ("appendonly", "yes")):
            redis_alone.ask("CONFIG", "SET", good, wanted)
        before = redis_alone.ask("CONFIG", "GET", name)[1]
        redis_alone.ask("CONFIG", "SET", name, value)

        found = codes(check_redis(await read(redis_alone.url)))

        assert {code} == set(found), (name, value)
        redis_alone.ask("CONFIG", "SET", name, before)


async def test_a_full_server_is_found_counted_and_told(redis_alone: RedisNode) -> None:
    limit = int(redis_alone.ask("INFO", "memory").decode().split("used_memory:")[1].split()[0]) + 4 * MB
    redis_alone.ask("CONFIG", "SET", "maxmemory", str(limit))
    refused = fill(redis_alone)

    reading = await read(redis_alone.url)
    found = codes(check_redis(reading))

    assert refused == reading.oom_errors
    assert {"redis_memory": Level.ERROR, "redis_out_of_memory": Level.ERROR} == {
        code: level for code, level in found.items() if level is Level.ERROR
    }
    assert (memory_of(reading).share or 0) > 0.9
    redis_alone.ask("CONFIG", "RESETSTAT")
    assert 0 == (await read(redis_alone.url)).oom_errors


async def test_metrics_and_alerts_tell_the_servers_memory(redis_alone: RedisNode) -> None:
    limit = int(redis_alone.ask("INFO", "memory").decode().split("used_memory:")[1].split()[0]) + 4 * MB
    redis_alone.ask("CONFIG", "SET", "maxmemory", str(limit))
    fill(redis_alone)

    async with Redrive("mail", "memory://") as app:
        app.settings = settings(redis_alone.url)
        probes = Probes(app)
        await probes.refresh()
        look = await look_once(app)

    shown = scrape(probes.metrics)
    assert limit == shown["redrive_redis_memory_max_bytes", ""]
    assert 0.9 * limit < shown["redrive_redis_memory_used_bytes", ""]
    assert 1 == shown["redrive_redis_oom_errors_total", ""]
    assert {"RedisMemoryHigh", "RedisMemoryCritical", "RedisOutOfMemory"} <= {alert.rule for alert in look.firing}


async def test_a_user_who_may_not_read_settings_gets_what_info_tells(redis_alone: RedisNode) -> None:
    redis_alone.ask("CONFIG", "SET", "maxmemory", "512mb")
    redis_alone.ask("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all", "-config")

    found = codes(check_redis(await read(f"redis://worker:secret@{redis_alone.host}:{redis_alone.port}/0")))

    assert {"redis_config_unread": Level.INFO} == found


async def test_a_replica_answers_and_is_named(redis_alone: RedisNode) -> None:
    redis_alone.ask("REPLICAOF", "127.0.0.1", "1")

    found = codes(check_redis(await read(redis_alone.url)))

    assert Level.ERROR is found["redis_replica"]


async def test_a_server_that_is_away_is_a_finding(redis_alone: RedisNode, no_file: None) -> None:
    redis_alone.kill()

    with pytest.raises(BrokerUnavailableError):
        await read(redis_alone.url)
    found = await examine(Redrive("mail", settings=settings(redis_alone.url)))

    assert {BrokerUnavailableError.code: Level.ERROR, **BESIDE} == codes(found.findings)


async def test_a_wrong_password_is_told_and_not_shown(redis_alone: RedisNode) -> None:
    redis_alone.ask("CONFIG", "SET", "requirepass", "right")

    with pytest.raises(ConfigurationError) as refused:
        await read(f"redis://:wrong-one@{redis_alone.host}:{redis_alone.port}/0")

    assert "wrong-one" not in str(refused.value)


async def test_a_password_that_was_not_given_is_a_finding_too(redis_alone: RedisNode, no_file: None) -> None:
    redis_alone.ask("CONFIG", "SET", "requirepass", "right")

    found = await examine(Redrive("mail", settings=settings(redis_alone.url)))

    assert {ConfigurationError.code: Level.ERROR, **BESIDE} == codes(found.findings)
    assert "wants a password" in found.findings[0].text


def test_the_command_on_a_live_server(redis_alone: RedisNode, tmp_path: Path) -> None:
    redis_alone.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    done = subprocess.run(
        [sys.executable, "-m", "redrive.cli", "doctor", "--broker", redis_alone.url, "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert 1 == done.returncode, done.stderr
    document = json.loads(done.stdout)
    assert "redis_eviction" == document["findings"][0]["code"]
    assert "CONFIG SET maxmemory-policy noeviction" in document["findings"][0]["remedy"]
