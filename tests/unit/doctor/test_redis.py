"""A Redis server's settings, judged: each that loses messages is found, with the command that helps."""

from __future__ import annotations

import pytest

from redrive.core.doctor import Level, RedisReading, check_redis, memory_of
from redrive.core.doctor.settings import check_settings

MB = 1024 * 1024
GOOD_INFO = {
    "redis_version": "7.0.15", "role": "master", "loading": "0", "used_memory": str(100 * MB),
    "maxmemory": str(512 * MB), "aof_enabled": "1", "aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok",
    "rdb_last_bgsave_status": "ok", "connected_slaves": "0", "connected_clients": "5", "maxclients": "10000",
    "evicted_keys": "0", "rejected_connections": "0",
}  # fmt: skip
GOOD_CONFIG = {
    "appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no", "aof-use-rdb-preamble": "yes",
    "auto-aof-rewrite-percentage": "100", "auto-aof-rewrite-min-size": str(64 * MB), "maxmemory": str(512 * MB),
    "maxmemory-policy": "noeviction", "maxclients": "10000", "min-replicas-to-write": "0",
}  # fmt: skip


def found(*, strict: bool = False, info: dict[str, str] | None = None, **config: str) -> dict[str, Level]:
    """Code to level, of a good server with these differences (`_` for `-` in names)."""
    changed = {name.replace("_", "-"): value for name, value in config.items()}
    reading = RedisReading(info={**GOOD_INFO, **(info or {})}, config={**GOOD_CONFIG, **changed})
    return {finding.code: finding.level for finding in check_redis(reading, strict=strict)}


@pytest.mark.parametrize("strict", [True, False])
def test_a_server_as_it_should_be_has_no_finding(strict: bool) -> None:
    assert {} == found(strict=strict)


def test_every_second_is_worth_knowing_and_not_enough_where_nothing_may_be_lost() -> None:
    assert {"redis_every_second": Level.INFO} == found(appendfsync="everysec")
    assert {"redis_every_second": Level.ERROR} == found(appendfsync="everysec", strict=True)


SETTINGS: dict[str, tuple[dict[str, str], dict[str, Level]]] = {
    "no append-only file": ({"appendonly": "no"}, {"redis_no_aof": Level.ERROR}),
    "never synced": ({"appendfsync": "no"}, {"redis_no_fsync": Level.ERROR}),
    "not synced while rewriting": (
        {"no_appendfsync_on_rewrite": "yes"},
        {"redis_no_fsync_on_rewrite": Level.WARNING},
    ),
    "evicts": ({"maxmemory_policy": "allkeys-lru"}, {"redis_eviction": Level.ERROR}),
    "evicts what expires": ({"maxmemory_policy": "volatile-ttl"}, {"redis_eviction": Level.ERROR}),
    "no preamble": ({"aof_use_rdb_preamble": "no"}, {"redis_no_preamble": Level.WARNING}),
    "never rewritten": ({"auto_aof_rewrite_percentage": "0"}, {"redis_no_rewrite": Level.WARNING}),
    "rewritten late": ({"auto_aof_rewrite_percentage": "400"}, {"redis_late_rewrite": Level.INFO}),
    "rewritten when large": ({"auto_aof_rewrite_min_size": str(1024 * MB)}, {"redis_late_rewrite": Level.INFO}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_that_is_not_as_it_should_be_is_found(name: str) -> None:
    config, expected = SETTINGS[name]

    assert expected == found(**config)


STATES: dict[str, tuple[dict[str, str], dict[str, Level]]] = {
    "80 % of the memory": ({"used_memory": str(int(0.8 * 512 * MB))}, {}),
    "more than 80 %": ({"used_memory": str(410 * MB)}, {"redis_memory": Level.WARNING}),
    "more than 90 %": ({"used_memory": str(461 * MB)}, {"redis_memory": Level.ERROR}),
    "no limit": ({"maxmemory": "0"}, {"redis_no_limit": Level.WARNING}),
    "a small one": ({"maxmemory": str(256 * MB)}, {"redis_small": Level.INFO}),
    "refused writes": ({"errorstat_OOM": "count=3"}, {"redis_out_of_memory": Level.ERROR}),
    "other errors": ({"errorstat_ERR": "count=3", "errorstat_NOSCRIPT": "count=1"}, {}),
    "refused clients are no OOM": ({"rejected_connections": "7"}, {"redis_refused_clients": Level.INFO}),
    "evicted keys": ({"evicted_keys": "9"}, {"redis_evicted": Level.ERROR}),
    "a write that failed": ({"aof_last_write_status": "err"}, {"redis_aof_last_write_status": Level.ERROR}),
    "a snapshot that failed": ({"rdb_last_bgsave_status": "err"}, {"redis_rdb_last_bgsave_status": Level.ERROR}),
    "loading": ({"loading": "1"}, {"redis_loading": Level.WARNING}),
    "a replica": ({"role": "slave", "master_host": "m", "master_port": "1"}, {"redis_replica": Level.ERROR}),
    "replicas nobody waits for": ({"connected_slaves": "2"}, {"redis_fail_over": Level.INFO}),
    "a node of a cluster": ({"cluster_enabled": "1"}, {"redis_cluster": Level.INFO}),
    "nearly all clients": ({"connected_clients": "9001"}, {"redis_clients": Level.WARNING}),
    "an old server, on which no worker starts": ({"redis_version": "6.0.16"}, {"redis_too_old": Level.ERROR}),
}


@pytest.mark.parametrize("name", STATES)
def test_each_state_that_endangers_messages_is_found(name: str) -> None:
    info, expected = STATES[name]

    assert expected == found(info=info)


def test_every_error_and_warning_says_what_to_do() -> None:
    worst = {**GOOD_INFO, **{name: value for change, _ in STATES.values() for name, value in change.items()}}
    config = {
        **GOOD_CONFIG,
        **{name.replace("_", "-"): value for change, _ in SETTINGS.values() for name, value in change.items()},
    }

    findings = check_redis(RedisReading(info=worst, config={**config, "appendonly": "yes"}), strict=True)

    assert len(findings) >= 10
    assert [] == [finding.code for finding in findings if finding.level is not Level.INFO and not finding.remedy]
    assert [] == [finding.code for finding in findings if not finding.risk.endswith(".")]


@pytest.mark.parametrize(("limit", "command"), [(512 * MB, "CONFIG SET maxmemory 1024mb"), (0, None)])
def test_no_remedy_sets_a_limit_that_would_refuse_more(limit: int, command: str | None) -> None:
    """Twice nothing is no memory at all: a server without a limit gets none from a count of old refusals."""
    full = {**GOOD_INFO, "maxmemory": str(limit), "errorstat_OOM": "count=3"}

    findings = check_redis(RedisReading(info=full, config={**GOOD_CONFIG, "maxmemory": str(limit)}))

    (refused,) = [finding for finding in findings if finding.code == "redis_out_of_memory"]
    assert refused.remedy.endswith("redis-cli CONFIG RESETSTAT")
    assert (command is not None) == ("maxmemory" in refused.remedy)
    assert command is None or command in refused.remedy


def test_a_server_that_hides_its_settings_is_judged_by_what_it_tells() -> None:
    hidden = RedisReading(info={**GOOD_INFO, "aof_enabled": "0", "maxmemory_policy": "allkeys-lru"})

    codes = [finding.code for finding in check_redis(hidden)]

    assert ["redis_no_aof", "redis_eviction", "redis_config_unread"] == codes


def test_an_empty_reading_is_no_reason_to_fail() -> None:
    reading = RedisReading(info={})

    assert ["redis_no_limit", "redis_config_unread"] == [finding.code for finding in check_redis(reading)]
    assert memory_of(reading).share is None
    assert reading.oom_errors is None


@pytest.mark.parametrize(
    ("version", "errors", "expected"), [("7.0.15", "", 0), ("7.0.15", "count=12", 12), ("6.0.1", "count=12", None)]
)
def test_oom_errors_are_read_from_the_error_statistics(version: str, errors: str, expected: int | None) -> None:
    info = {"redis_version": version, "rejected_connections": "99"} | ({"errorstat_OOM": errors} if errors else {})

    assert expected == RedisReading(info=info).oom_errors


@pytest.mark.parametrize(
    ("broker", "store", "durability", "expected"),
    [
        ("sqlite", "sqlite", "full", {}),
        ("sqlite", "sqlite", "normal", {"durability_normal": Level.WARNING}),
        ("memory", "sqlite", "full", {"memory_only": Level.WARNING}),
        ("amqp", "sqlite", "full", {"store_is_local": Level.WARNING, "topology_not_checked": Level.INFO}),
        ("redis", "sqlite", "full", {"letters_are_local": Level.INFO}),
    ],
)
def test_settings_alone_say_what_is_not_durable(
    broker: str, store: str, durability: str, expected: dict[str, Level]
) -> None:
    findings = check_settings(broker=broker, store=store, durability=durability, strict=False)

    assert expected == {finding.code: finding.level for finding in findings}
