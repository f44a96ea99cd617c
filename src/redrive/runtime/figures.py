"""Figures read where they are: the letter store, the Redis server, and the metrics of running workers.

What the store cannot know (how many messages were processed) only a worker's `/metrics` tells; without one, the rules
that need it are not judged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from redrive.core.alerts.figures import NEW_WINDOW_MS, OOM_WINDOW_MS, Reading, Values
from redrive.core.doctor import RedisReading, memory_of
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import LetterStore
from redrive.core.units import UnixMs
from redrive.errors import ConfigurationError
from redrive.runtime.labels import NONE

TENANTS_READ: Final = 1_000
"""Tenants with the most letters; below them nobody has more than the thousandth."""

LastHour: TypeAlias = Mapping[str, float]
"""What workers say of the last hour, by outcome: processed, dead_lettered, archived, failed (to archive)."""
AskWorkers: TypeAlias = Callable[[], Awaitable[LastHour]]
ReadServer: TypeAlias = Callable[[], Awaitable[RedisReading]]


class Figures:
    """Reads all that can be read, again and again; remembers error counts for as long as their window is."""

    def __init__(
        self, letters: LetterStore, *, workers: AskWorkers | None = None, server: ReadServer | None = None
    ) -> None:
        self._letters = letters
        self._workers = workers
        self._server = server
        self._oom: deque[tuple[UnixMs, int]] = deque()

    async def read(self, now: UnixMs) -> Reading:
        """Raises `RedriveError` where store or server is away."""
        found: dict[str, Values] = {}
        opened = await self._letters.stats(Selection(states=OPEN_STATES), top=TENANTS_READ)
        fresh = await self._letters.stats(Selection(since=now - NEW_WINDOW_MS), top=1)
        age_ms = 0 if opened.oldest_at is None else max(0, now - opened.oldest_at)
        found["letters_open"] = {"": opened.total}
        found["letters_by_tenant"] = {name: count for name, count in opened.by_tenant.items() if name != NONE}
        found["letters_new_5m"] = {"": fresh.total}
        found["letter_oldest_age_seconds"] = {"": age_ms / 1_000}
        if self._workers is not None:
            found.update(_of_workers(await self._workers()))
        if self._server is not None:
            found.update(self._of_server(await self._server(), now))
        return found

    def _of_server(self, server: RedisReading, now: UnixMs) -> dict[str, Values]:
        found: dict[str, Values] = {}
        share = memory_of(server).share
        if share is not None:
            found["redis_memory_share"] = {"": share}
        if server.oom_errors is not None:
            found["redis_oom_errors"] = {"": self._new_oom_errors(server.oom_errors, now)}
        return found

    def _new_oom_errors(self, count: int, now: UnixMs) -> int:
        """Those of the window; at the first look all there are: when they came nobody knows."""
        seen = self._oom
        if not seen or count < seen[-1][1]:
            # The first look, or the statistics were reset.
            seen.clear()
            seen.append((now, 0))
        seen.append((now, count))
        while seen[1][0] <= now - OOM_WINDOW_MS:
            seen.popleft()
        return count - seen[0][1]


def _of_workers(last_hour: LastHour) -> dict[str, Values]:
    dead = last_hour["dead_lettered"]
    total = dead + last_hour["processed"]
    return {
        "sends_1h": {"": total},
        "dead_letter_share_1h": {"": dead / total if total else 0.0},
        "letters_archived_1h": {"": last_hour["archived"]},
        "archive_failures_1h": {"": last_hour["failed"]},
    }


_PAGES: Final = ("messages_last_hour", "letters_archived_last_hour")


def last_hour_in(pages: Sequence[str], *, prefix: str) -> dict[str, float]:
    """What the `/metrics` of several processes say of the last hour, added up.

    Raises `ConfigurationError` where a page has no such metric: it is no redrive, or has another prefix.
    """
    found: dict[str, float] = {}
    for page in pages:
        try:
            families = {family.name: family.samples for family in text_string_to_metric_families(page)}
        except (ValueError, IndexError, KeyError):
            families = {}  # something else than metrics, which the parser does not always say in one way
        for name in _PAGES:
            samples = families.get(f"{prefix}{name}")
            if not samples:
                raise ConfigurationError(
                    f"What was scraped has no {prefix}{name}.",
                    hint="Name the /metrics of a redrive worker; its metrics_prefix has to be the one set here.",
                )
            for sample in samples:
                outcome = sample.labels["outcome"]
                found[outcome] = found.get(outcome, 0.0) + sample.value
    return found
