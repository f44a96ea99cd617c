"""Who may send: sources, their secrets, and where the secrets come from.

Several secrets of one source hold at the same time, so that a rotation is three steps none of which loses a webhook:
add the new secret in front, let the sender change over, remove the old one. A `SecretsFile` is looked at again while
the gateway runs; a file that has become unreadable or wrong leaves the secrets as they were (and says so), because
refusing every sender would be the worse failure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from redrive.core.policy.flow import RateSpec
from redrive.errors import ConfigurationError
from redrive.ingest.signatures import Scheme
from redrive.ingest.webhook import Build

MAX_SECRETS: Final = 10
"""Per source: every request is checked against all of them."""

SOURCE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,62}", re.ASCII)
"""A source is a path segment and the front of idempotency keys, so it may hold no `/` and no `:`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One sender. What is None is the gateway's own. `rate`: requests in each process."""

    secrets: Sequence[str] = field(repr=False)
    scheme: Scheme | None = None
    build: Build | None = None
    rate: RateSpec | None = None


Sources: TypeAlias = Mapping[str, Source | Sequence[str]]
"""Source name to a `Source`, or just to its secrets."""

SourcesReader: TypeAlias = Callable[[], Sources]
"""Asked again at most once a second; must be quick. `SecretsFile` is one."""


def parse_secrets(text: str, *, origin: str) -> dict[str, tuple[str, ...]]:
    """A JSON object, source name to list of secrets, as a value for `Gateway(sources=…)`.

    Raises `ConfigurationError` that names `origin` and the source, and shows no secret.
    """
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(f"{origin} is not JSON.") from None
    if not isinstance(table, dict):
        raise _wrong(f"{origin} is not a JSON object.")
    return {name: _secrets_of(name, given, origin=origin) for name, given in table.items()}


def secrets_from(variables: Mapping[str, str], *, name: str) -> dict[str, tuple[str, ...]]:
    """The secrets in one environment variable (JSON); no sources where it is absent or blank."""
    text = variables.get(name, "")
    return parse_secrets(text, origin=name) if text.strip() else {}


class SecretsFile:
    """A file with the JSON of `parse_secrets`, read again whenever it changes. Give it to `Gateway(sources=…)`."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._mark: tuple[int, int, int] | None = None
        self._read: dict[str, tuple[str, ...]] = {}

    def __call__(self) -> Sources:
        """The secrets now. Raises `ConfigurationError` where the file is absent or wrong."""
        try:
            stat = self._path.stat()
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if mark != self._mark:
                self._read = parse_secrets(self._path.read_text("utf-8"), origin=f'The secrets file "{self._path}"')
                self._mark = mark
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f'The secrets file "{self._path}" cannot be read ({type(error).__name__}).',
                hint="Make it readable for the gateway's user; it is a JSON object, source to list of secrets.",
            ) from None
        return self._read


def as_sources(given: Sources) -> dict[str, Source]:
    """Every source as a `Source`, checked. Raises `ConfigurationError` naming the source."""
    sources = {}
    for name, value in given.items():
        if SOURCE_NAME.fullmatch(name) is None:
            raise ConfigurationError(
                f'The source name "{name}" cannot stand in a path and a key.',
                hint="Use 1 to 63 of A-Z, a-z, 0-9, dot, dash and underscore, beginning with a letter or digit.",
            )
        source = value if isinstance(value, Source) else Source(secrets=_secrets_of(name, value, origin="sources"))
        if not 1 <= len(source.secrets) <= MAX_SECRETS:
            raise _wrong(f'Source "{name}" has {len(source.secrets)} secrets: it needs 1 to {MAX_SECRETS}.')
        sources[name] = source
    return sources


def _secrets_of(name: str, given: Any, *, origin: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise _wrong(f'{origin}: source "{name}" needs a list of secrets.')
    if not all(isinstance(secret, str) and secret.strip() for secret in given):
        raise _wrong(f'{origin}: source "{name}" has a secret that is no text or is empty.')
    if not given:
        raise _wrong(f'{origin}: source "{name}" has no secret.')
    return tuple(given)


def _wrong(text: str) -> ConfigurationError:
    return ConfigurationError(text, hint='Write {"courier-x": ["current secret", "next secret"]}.')
