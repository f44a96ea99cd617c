"""Doctor: asks broker, store and settings, and says what would lose messages. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from redrive.core.doctor import Finding, Level, RedisReading, check_redis, memory_of, worst_first
from redrive.core.doctor.settings import HAS_NO_STORE, check_settings
from redrive.errors import RedriveError
from redrive.runtime.adapters import check_file, masked, read_server, server_url, sqlite_path
from redrive.runtime.app import Redrive

Fact: TypeAlias = "tuple[str, str | int | float | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was looked at and what was found, the worst first. `facts`: a few numbers of the server or file."""

    broker: str
    findings: tuple[Finding, ...]
    facts: tuple[Fact, ...] = ()
    is_strict: bool = False

    def at_least(self, level: Level) -> tuple[Finding, ...]:
        """Findings as bad as this, or worse."""
        return tuple(finding for finding in self.findings if finding.level.rank <= level.rank)

    def document(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "broker": self.broker,
            "strict": self.is_strict,
            "facts": dict(self.facts),
            "findings": [finding.document() for finding in self.findings],
        }


async def examine(app: Redrive, *, strict: bool = False) -> Report:
    """Look at everything the app stands on. `strict`: nothing accepted may be lost in a crash of a server or machine.

    A server or file that is away or broken is a finding, not an error. The app need not be open, and is not opened.
    """
    settings = app.settings
    findings = [
        *check_settings(
            broker=urlsplit(settings.broker).scheme,
            store=urlsplit(settings.store).scheme,
            durability=settings.durability,
            strict=strict,
        )
    ]
    facts: list[Fact] = []
    for file in dict.fromkeys((settings.broker, settings.store)):
        if urlsplit(file).scheme == "sqlite" and (file == settings.broker or _is_store_used(settings.broker)):
            findings += _of_file(file, facts)
    server = server_url(settings)
    if server is not None:
        findings += await _of_redis(server, facts, strict=strict)
    return Report(broker=masked(settings.broker), findings=worst_first(findings), facts=tuple(facts), is_strict=strict)


def _is_store_used(broker: str) -> bool:
    return urlsplit(broker).scheme in HAS_NO_STORE


def _of_file(url: str, facts: list[Fact]) -> Iterator[Finding]:
    path = Path(sqlite_path(url))
    if not path.is_file():
        yield Finding(
            code="no_file",
            level=Level.INFO,
            text=f'There is no file "{path}" yet.',
            risk="None: the first worker or publisher makes it.",
        )
        return
    try:
        report = check_file(path)
    except RedriveError as error:
        yield _broken(error)
        return
    facts += [("file", str(path)), ("messages", report.messages), ("letters", report.letters)]
    for problem in report.problems:
        yield Finding(
            code="file_damaged",
            level=Level.ERROR,
            text=f'"{path}" is damaged: {problem}.',
            risk="Messages in the damaged part cannot be read; writing goes on damaging it.",
            remedy="Stop the workers and put the last backup in its place: redrive restore BACKUP --overwrite",
        )


async def _of_redis(url: str, facts: list[Fact], *, strict: bool) -> tuple[Finding, ...]:
    try:
        reading = await read_server(url)
    except RedriveError as error:
        return (_broken(error),)
    facts += facts_of(reading)
    return check_redis(reading, strict=strict)


def facts_of(reading: RedisReading) -> list[Fact]:
    """A few numbers of a Redis server."""
    memory = memory_of(reading)
    share = memory.share
    return [
        ("redis_version", reading.info.get("redis_version")),
        ("role", reading.info.get("role")),
        ("memory_used_bytes", memory.used_bytes),
        ("memory_max_bytes", memory.limit_bytes or None),
        ("memory_used_percent", None if share is None else round(100 * share, 1)),
        ("appendfsync", reading.config.get("appendfsync") if reading.config.get("appendonly") == "yes" else None),
        ("oom_errors", reading.oom_errors),
    ]


def _broken(error: RedriveError) -> Finding:
    return Finding(
        code=error.code,
        level=Level.ERROR,
        text=error.text,
        risk="Nothing can be published, handed out or settled.",
        remedy=error.hint,
    )
