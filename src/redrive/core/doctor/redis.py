"""A Redis server's settings and state, judged: what would lose messages, or stop taking them.

Everything is read from `INFO` (its sections `everything`, which hold the error statistics) and `CONFIG GET`, as text.
A server whose owner forbids CONFIG (many hosted ones do) is judged by what INFO tells.

*Source*: system E, Redis: AOF `everysec`, `noeviction`, `aof-use-rdb-preamble yes`, rewrite 100 % / 64 MB, 512 MB,
memory > 80 % / > 90 %, OOM from the error statistics and never from `rejected_connections` (which counts refused
clients). The settings' meaning: redis.conf of Redis 7.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from redrive.core.doctor.finding import Finding, Level

WANTED_MEMORY_BYTES: Final = 512 * 1024 * 1024
REWRITE_PERCENT: Final = 100
REWRITE_MIN_BYTES: Final = 64 * 1024 * 1024
MEMORY_WARNING: Final = 0.8
MEMORY_CRITICAL: Final = 0.9
CLIENTS_WARNING: Final = 0.9
JOB_BYTES: Final = 2_048
"""At most so much of Redis for one waiting job (system E, Capacity)."""

OLDEST: Final = (6, 2)
"""What BullMQ recommends at least (it refuses less than 5); from here on INFO tells OOM errors, too. With an older one
redrive does not start.
"""

CONFIG_NAMES: Final = (
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "aof-use-rdb-preamble",
    "auto-aof-rewrite-percentage",
    "auto-aof-rewrite-min-size",
    "maxmemory",
    "maxmemory-policy",
    "maxclients",
    "min-replicas-to-write",
    "min-slaves-to-write",
)
"""What `CONFIG GET` is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisReading:
    """What a server says of itself. `config` empty: CONFIG is forbidden there."""

    info: Mapping[str, str]
    config: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """A whole number of INFO, else of CONFIG; None where neither tells."""
        text = self.info.get(name, self.config.get(name))
        return int(text) if text is not None and text.lstrip("-").isdecimal() else None

    @property
    def version(self) -> tuple[int, ...]:
        """(7, 0, 15), () where it does not tell. A Valkey tells the Redis version it stands for."""
        parts = self.info.get("redis_version", "").split(".")
        return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()

    @property
    def oom_errors(self) -> int | None:
        """Commands answered with OOM since the statistics began; None where the server does not count errors."""
        if self.version < OLDEST:
            return None
        counts = dict(pair.partition("=")[::2] for pair in self.info.get("errorstat_OOM", "").split(","))
        return int(counts.get("count", "0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisMemory:
    """`limit_bytes` 0: the server has none."""

    used_bytes: int
    limit_bytes: int

    @property
    def share(self) -> float | None:
        """0 to 1 and, with a limit lowered under load, above; None without a limit."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else None


def memory_of(reading: RedisReading) -> RedisMemory:
    """How much is used of how much."""
    return RedisMemory(used_bytes=reading.number("used_memory") or 0, limit_bytes=reading.number("maxmemory") or 0)


def check_redis(reading: RedisReading, *, strict: bool = False) -> tuple[Finding, ...]:
    """Everything that is not as it should be, in the order of the checks. `strict`: no accepted message may be lost in
    a crash of the server, so it has to write each one to disk before it answers.
    """
    return (
        *_version(reading),
        *_durability(reading, strict=strict),
        *_rewriting(reading),
        *_eviction(reading),
        *_memory(reading),
        *_out_of_memory(reading),
        *_persistence(reading),
        *_replication(reading),
        *_cluster(reading),
        *_clients(reading),
        *_unread(reading),
    )


def _version(reading: RedisReading) -> Iterator[Finding]:
    told = reading.info.get("redis_version", "unknown")
    if reading.version and reading.version < OLDEST:
        yield Finding(
            code="redis_too_old",
            level=Level.ERROR,
            text=f"The server is Redis {told}.",
            risk="BullMQ's scripts want commands it does not have: no worker or publisher starts on it.",
            remedy="Upgrade to Redis 7 or Valkey 8.",
        )


def _durability(reading: RedisReading, *, strict: bool) -> Iterator[Finding]:
    appends = reading.config.get("appendonly", {"1": "yes", "0": "no"}.get(reading.info.get("aof_enabled", "")))
    if appends == "no":
        yield Finding(
            code="redis_no_aof",
            level=Level.ERROR,
            text="The append-only file is off (appendonly no).",
            risk="A crash of the server loses every message since its last snapshot: minutes, or all of them.",
            remedy=_set("appendonly", "yes"),
        )
        return
    fsync = reading.config.get("appendfsync")
    if fsync == "no":
        yield Finding(
            code="redis_no_fsync",
            level=Level.ERROR,
            text="The server leaves it to the system when the append-only file reaches the disk (appendfsync no).",
            risk="A crash of the machine loses about the last 30 seconds of accepted messages.",
            remedy=_set("appendfsync", "always" if strict else "everysec"),
        )
    elif fsync == "everysec":
        yield _every_second(strict=strict)
    if reading.config.get("no-appendfsync-on-rewrite") == "yes":
        yield Finding(
            code="redis_no_fsync_on_rewrite",
            level=Level.ERROR if strict else Level.WARNING,
            text="While the append-only file is rewritten nothing is synced (no-appendfsync-on-rewrite yes).",
            risk="A crash of the machine in such a moment loses about the last 30 seconds of accepted messages.",
            remedy=_set("no-appendfsync-on-rewrite", "no"),
        )


def _every_second(*, strict: bool) -> Finding:
    return Finding(
        code="redis_every_second",
        level=Level.ERROR if strict else Level.INFO,
        text="The append-only file is synced once a second (appendfsync everysec).",
        risk="A crash may lose up to one second: messages accepted in it, and ends of others, which then come back.",
        remedy=_set("appendfsync", "always") if strict else "",
    )


def _rewriting(reading: RedisReading) -> Iterator[Finding]:
    if reading.config.get("aof-use-rdb-preamble") == "no":
        yield Finding(
            code="redis_no_preamble",
            level=Level.WARNING,
            text="A rewritten append-only file is commands only (aof-use-rdb-preamble no).",
            risk="The server takes many times longer to come back after a crash; nothing moves until it has.",
            remedy=_set("aof-use-rdb-preamble", "yes"),
        )
    percent, least = reading.number("auto-aof-rewrite-percentage"), reading.number("auto-aof-rewrite-min-size")
    if percent == 0:
        yield Finding(
            code="redis_no_rewrite",
            level=Level.WARNING,
            text="The append-only file is never rewritten by itself (auto-aof-rewrite-percentage 0).",
            risk="It grows until the disk is full, and then no write is taken; loading it takes ever longer.",
            remedy=_set("auto-aof-rewrite-percentage", str(REWRITE_PERCENT)),
        )
    elif (percent or 0) > REWRITE_PERCENT or (least or 0) > REWRITE_MIN_BYTES:
        yield Finding(
            code="redis_late_rewrite",
            level=Level.INFO,
            text=f"The append-only file is rewritten late: at {percent} % more than before, from {_size(least or 0)}.",
            risk="It takes more disk, and longer to load after a crash, than at 100 % and 64 MB.",
            remedy=f"{_set('auto-aof-rewrite-percentage', '100')}; {_set('auto-aof-rewrite-min-size', '64mb')}",
        )


def _eviction(reading: RedisReading) -> Iterator[Finding]:
    policy = reading.config.get("maxmemory-policy", reading.info.get("maxmemory_policy"))
    if policy is not None and policy != "noeviction":
        yield Finding(
            code="redis_eviction",
            level=Level.ERROR,
            text=f"A server that is full throws keys away (maxmemory-policy {policy}).",
            risk="It silently deletes jobs, whole queues, or what is known of messages already handled.",
            remedy=_set("maxmemory-policy", "noeviction"),
        )
    evicted = reading.number("evicted_keys") or 0
    if evicted:
        yield Finding(
            code="redis_evicted",
            level=Level.ERROR,
            text=f"The server has thrown {evicted} keys away since it started (evicted_keys).",
            risk="Messages may be lost already.",
            remedy=f"{_set('maxmemory-policy', 'noeviction')}. Compare with what publishers have sent.",
        )


def _memory(reading: RedisReading) -> Iterator[Finding]:
    memory = memory_of(reading)
    if memory.share is None:
        yield Finding(
            code="redis_no_limit",
            level=Level.WARNING,
            text="The server has no memory limit (maxmemory 0).",
            risk="It grows until the system kills it, which is a crash; with a limit it refuses writes and lives.",
            remedy=_set("maxmemory", "512mb"),
        )
        return
    room = f"{_size(memory.used_bytes)} of {_size(memory.limit_bytes)} are used ({memory.share * 100:.1f} %)"
    if memory.share > MEMORY_WARNING:
        is_critical = memory.share > MEMORY_CRITICAL
        yield Finding(
            code="redis_memory",
            level=Level.ERROR if is_critical else Level.WARNING,
            text=f"{room}.",
            risk="At 100 % every write is refused: nothing is accepted and nothing can be settled.",
            remedy=f"{_set('maxmemory', _double(memory.limit_bytes))}. Remove old letters: redrive dlq prune",
        )
    if memory.limit_bytes < WANTED_MEMORY_BYTES:
        yield Finding(
            code="redis_small",
            level=Level.INFO,
            text=f"The memory limit is {_size(memory.limit_bytes)}.",
            risk=f"That holds about {memory.limit_bytes // JOB_BYTES:,} waiting jobs.".replace(",", " "),
            remedy=_set("maxmemory", "512mb"),
        )


def _out_of_memory(reading: RedisReading) -> Iterator[Finding]:
    if reading.oom_errors:
        limit = memory_of(reading).limit_bytes
        # A server that has no limit now refuses nothing any more; one of our making would be too small.
        more = f"{_set('maxmemory', _double(limit))}. " if limit else ""
        yield Finding(
            code="redis_out_of_memory",
            level=Level.ERROR,
            text=f"The server has refused {reading.oom_errors} commands for want of memory (errorstat_OOM).",
            risk="What it had accepted is safe; publishers got an error, and workers could not settle.",
            remedy=f"{more}When it is over: redis-cli CONFIG RESETSTAT",
        )


def _persistence(reading: RedisReading) -> Iterator[Finding]:
    if reading.info.get("loading") == "1":
        yield Finding(
            code="redis_loading",
            level=Level.WARNING,
            text="The server is loading its data.",
            risk="Nothing is accepted or handed out until it has.",
            remedy="Wait: redis-cli INFO persistence shows loading_loaded_perc.",
        )
    for name, (what, command) in _WRITES.items():
        if reading.info.get(name, "ok") != "ok":
            yield Finding(
                code=f"redis_{name}",
                level=Level.ERROR,
                text=f"{what} failed ({name} {reading.info[name]}).",
                risk="The disk is full, read-only or broken: writes are refused, or lost in the next crash.",
                remedy=f"Make room on the disk and look into the server's log; then: redis-cli {command}",
            )


_WRITES: Final = {
    "aof_last_write_status": ("The last write to the append-only file", "BGREWRITEAOF"),
    "aof_last_bgrewrite_status": ("The last rewrite of the append-only file", "BGREWRITEAOF"),
    "rdb_last_bgsave_status": ("The last snapshot", "BGSAVE"),
}


def _replication(reading: RedisReading) -> Iterator[Finding]:
    info = reading.info
    if info.get("role") == "slave":
        yield Finding(
            code="redis_replica",
            level=Level.ERROR,
            text=f"The server is a replica of {info.get('master_host', '?')}:{info.get('master_port', '?')}.",
            risk="It takes no writes: nothing can be published, handed out or settled there.",
            remedy="Name the master in the broker's URL, or the Sentinels.",
        )
    replicas = reading.number("connected_slaves") or 0
    least = reading.number("min-replicas-to-write") or reading.number("min-slaves-to-write") or 0
    if info.get("role") == "master" and replicas and least == 0:
        yield Finding(
            code="redis_fail_over",
            level=Level.INFO,
            text=f"{replicas} replicas follow, and the server waits for none of them (min-replicas-to-write 0).",
            risk="A fail-over loses what had not reached the replica that takes over: mostly less than a second.",
            remedy=_set("min-replicas-to-write", "1"),
        )


def _cluster(reading: RedisReading) -> Iterator[Finding]:
    if reading.info.get("cluster_enabled") == "1":
        yield Finding(
            code="redis_cluster",
            level=Level.INFO,
            text="The server is one node of a cluster; only this one was looked at.",
            risk="The others may have other settings, and less room.",
            remedy="Run redrive doctor with the URL of each master. redis-cli CLUSTER NODES names them.",
        )


def _clients(reading: RedisReading) -> Iterator[Finding]:
    connected, limit = reading.number("connected_clients") or 0, reading.number("maxclients") or 0
    if limit and connected > CLIENTS_WARNING * limit:
        yield Finding(
            code="redis_clients",
            level=Level.WARNING,
            text=f"{connected} of {limit} connections are taken (maxclients).",
            risk="Further workers and publishers are refused.",
            remedy=_set("maxclients", str(2 * limit)),
        )
    refused = reading.number("rejected_connections") or 0
    if refused:
        yield Finding(
            code="redis_refused_clients",
            level=Level.INFO,
            text=f"The server has refused {refused} connections since its statistics began (rejected_connections).",
            risk="Those clients waited and came back. This says nothing about memory.",
            remedy=_set("maxclients", str(2 * limit)) if limit else "",
        )


def _unread(reading: RedisReading) -> Iterator[Finding]:
    if not reading.config:
        yield Finding(
            code="redis_config_unread",
            level=Level.INFO,
            text="The server does not let this user read its settings (CONFIG GET).",
            risk="When the append-only file reaches the disk, and how it is rewritten, is not known.",
            remedy=(
                "Ask who runs it for: appendfsync everysec, aof-use-rdb-preamble yes, maxmemory-policy noeviction."
            ),
        )


def _set(name: str, value: str) -> str:
    return f"redis-cli CONFIG SET {name} {value}; redis-cli CONFIG REWRITE"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1024 * 1024):.1f} MB"


def _double(limit_bytes: int) -> str:
    """Twice as much, as redis-cli takes it."""
    return f"{max(1, round(2 * limit_bytes / (1024 * 1024)))}mb"
