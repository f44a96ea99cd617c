"""Alerts without Prometheus: read the figures of one open app, judge them by the rules, once or again and again.

What stood at the last look is kept in memory, or in a file for who looks from a timer; without either, what is wrong is
told again. The Prometheus rules (`redrive metrics`) are the same table.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from redrive.core.alerts import (
    BY_NAME,
    DEFAULT_GROUPS,
    NOTHING,
    Alert,
    Evaluation,
    Group,
    Notification,
    Rule,
    evaluate,
    kept_document,
    kept_from,
    rules_of,
)
from redrive.core.ports import Clock
from redrive.core.units import Millis, UnixMs, rfc3339
from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.runtime.adapters import read_server, server_url
from redrive.runtime.app import Redrive
from redrive.runtime.figures import Figures, last_hour_in

SCRAPE_TIMEOUT_S: Final = 10.0
MAX_PAGE_BYTES: Final = 32 * 1024 * 1024
EVERY_MS: Final[Millis] = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rules, and where running workers answer `/metrics`: without any, rules about rates are not judged.
    `state`: the file that keeps what stood, so that each turn is told once however often the process is started anew.
    """

    groups: tuple[Group, ...] = DEFAULT_GROUPS
    metrics_urls: tuple[str, ...] = ()
    state: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What stands at one time. `unknown`: rules that could not be judged."""

    at: UnixMs
    evaluation: Evaluation

    @property
    def firing(self) -> tuple[Alert, ...]:
        """What is wrong."""
        return self.evaluation.firing


class Watch:
    """The alerts of one open app. Keeps what stood at the look before."""

    def __init__(self, app: Redrive, wanted: Wanted | None = None, *, waits: bool = True) -> None:
        """`waits` False: no rule waits until it has been met for long enough."""
        wanted = Wanted() if wanted is None else wanted
        self._clock: Clock = app.clock
        url = server_url(app.settings)
        rules = tuple(rule for rule in rules_of(wanted.groups) if rule.group is not Group.REDIS or url)
        self._rules = rules if waits else tuple(replace(rule, for_ms=0) for rule in rules)
        self._state = wanted.state
        self._before = NOTHING if wanted.state is None else _kept_in(wanted.state)
        prefix = app.settings.metrics_prefix
        self._figures = Figures(
            app.backend.letters,
            workers=_Workers(wanted.metrics_urls, prefix) if wanted.metrics_urls else None,
            server=None if url is None else lambda: read_server(url),
        )

    async def look(self) -> Look:
        """Read and judge. Raises `RedriveError` where what has to be asked is away, and `OSError` where the file of the
        state cannot be written; then nothing has changed, and what began or is over is told by the next look.
        """
        now = self._clock.now()
        found = evaluate(self._rules, await self._figures.read(now), before=self._before, now=now)
        if self._state is not None:
            await asyncio.to_thread(_keep_in, self._state, found)
        self._before = found
        return Look(at=now, evaluation=found)

    async def changes(self, *, every_ms: Millis = EVERY_MS) -> AsyncIterator[Look | BrokerUnavailableError]:
        """A look every so often, for ever; where the store or a server is away, the error instead."""
        while True:
            try:
                yield await self.look()
            except BrokerUnavailableError as error:
                yield error
            await self._clock.sleep(every_ms)


async def look_once(app: Redrive, wanted: Wanted | None = None) -> Look:
    """What is wrong now. How long it has been so is not known, so no rule waits. Raises `RedriveError`."""
    return await Watch(app, wanted, waits=False).look()


def _kept_in(path: Path) -> Evaluation:
    try:
        return kept_from(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return NOTHING
    except ValueError as error:
        raise ConfigurationError(f'"{path}" is not what redrive alerts keeps: {error}.', hint="Remove it.") from error


def _keep_in(path: Path, evaluation: Evaluation) -> None:
    """Whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(kept_document(evaluation)), "utf-8")
    part.replace(path)


class _Workers:
    """What workers say of the last hour."""

    def __init__(self, urls: Sequence[str], prefix: str) -> None:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ConfigurationError(
                    f'"{url}" is no web address.', hint="For example http://127.0.0.1:8000/metrics"
                )
        self._urls = urls
        self._prefix = prefix

    async def __call__(self) -> Mapping[str, float]:
        pages = await asyncio.gather(*(asyncio.to_thread(_page, url) for url in self._urls))
        return last_hour_in(pages, prefix=self._prefix)


def _page(url: str) -> str:
    try:
        with urlopen(url, timeout=SCRAPE_TIMEOUT_S) as answer:  # noqa: S310 - http and https only, checked
            body: bytes = answer.read(MAX_PAGE_BYTES)
    except (URLError, OSError, ValueError) as error:
        raise BrokerUnavailableError(
            f"{url} does not answer: {error}.", hint="Is the worker running, with --http or as redrive up?"
        ) from error
    return body.decode("utf-8", "replace")


def alert_document(alert: Alert) -> dict[str, Any]:
    """One alert as plain values, its texts filled in."""
    rule: Rule = BY_NAME[alert.rule]
    texts = {
        name: rule.told(getattr(rule, name), value=alert.value, label=alert.label)
        for name in ("summary", "description", "action")
    }
    return {
        "alert": alert.rule,
        "label": alert.label or None,
        "severity": str(alert.severity),
        "state": str(alert.state),
        "since": rfc3339(alert.since),
        "value": alert.value,
        **texts,
    }


def look_document(look: Look) -> dict[str, Any]:
    """What stands, worst first; `turns` is what began or was over with this look."""
    firing = sorted(look.firing, key=lambda alert: (str(alert.severity), alert.rule, alert.label))
    return {
        "at": rfc3339(look.at),
        "firing": [alert_document(alert) for alert in firing],
        "turns": [notification_document(turn) for turn in look.evaluation.notifications],
        "unknown": list(look.evaluation.unknown),
    }


def notification_document(notification: Notification) -> dict[str, Any]:
    """One turn of an alert: it fires, or is resolved."""
    return {**alert_document(notification.alert), "at": rfc3339(notification.at)}
