"""From a URL to the adapters behind it: the only module that names any.

`sqlite:///file.db` and `memory://` bring all that an app needs. `amqp://host/vhost` is a broker alone: its claims,
letters and jobs live in the store the setting `store` names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from redrive.core.live import LiveBroker
from redrive.core.ports import Clock
from redrive.core.topology.entry import dead_letter_outgoing
from redrive.core.topology.model import EMPTY, Topology
from redrive.errors import ConfigurationError, MissingExtraError, UnsupportedError
from redrive.runtime.backend import Backend, FileReport
from redrive.runtime.settings import Settings

if TYPE_CHECKING:
    from redrive.sqlite import SqliteFile


def open_backend(url: str, *, clock: Clock, settings: Settings, topology: Topology = EMPTY) -> Backend:
    """The adapters behind a URL, not yet opened. `topology`: what a broker with exchanges declares, and how its queues
    retry.

    Raises `ConfigurationError` for a scheme nobody knows and `MissingExtraError` where a driver is not installed.
    """
    scheme = _scheme(url)
    maker = _BACKENDS.get(scheme)
    if maker is None:
        known = ", ".join(f"{name}://" for name in _BACKENDS)
        if not scheme:
            hint = f'For a file write "sqlite:///{url}". Known: {known}.' if url.strip() else f"Known: {known}."
            raise ConfigurationError(f'The broker "{masked(url)}" is no URL.', hint=hint)
        raise ConfigurationError(f'No broker speaks "{scheme}://" in "{masked(url)}".', hint=f"Known: {known}.")
    try:
        return maker(_Wanted(url=url, clock=clock, settings=settings, topology=topology))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "redrive":
            raise
        hint = f'Run: pip install "redrive[{_EXTRAS.get(scheme, scheme)}]"'
        raise MissingExtraError(f'The driver "{error.name}" for {scheme}:// is not installed.', hint=hint) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    url: str
    clock: Clock
    settings: Settings
    topology: Topology


def masked(url: str) -> str:
    """The URL, or what was meant as one, with its password hidden, for logs and messages."""
    scheme, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if not colon or "/" in user:
        return url
    return f"{scheme}://{user}:***@{place}"


def _scheme(url: str) -> str:
    """What stands before its colon; empty where there is none."""
    scheme, colon, _ = url.partition(":")
    return scheme.lower() if colon else ""


# ---------------------------------------------------------------------------------------------------- one file


def _sqlite(wanted: _Wanted) -> Backend:
    from redrive.brokers.sqlite import SqliteBroker  # noqa: PLC0415 - loaded only where used
    from redrive.sqlite import SqliteLedger  # noqa: PLC0415
    from redrive.sqlite.backup import backup  # noqa: PLC0415
    from redrive.stores.sqlite import SqliteClaimStore, SqliteJobStore, SqliteLetterStore  # noqa: PLC0415

    file = _file(wanted.url, wanted)
    return Backend(
        url=wanted.url,
        ledger=SqliteLedger(file),
        broker=SqliteBroker(file),
        claims=SqliteClaimStore(file),
        letters=SqliteLetterStore(file),
        jobs=SqliteJobStore(file),
        backup=lambda target: asyncio.to_thread(backup, file.path, target),
    )


def _file(url: str, wanted: _Wanted) -> SqliteFile:
    from redrive.sqlite import SqliteFile  # noqa: PLC0415 - loaded only where used

    settings = wanted.settings
    return SqliteFile(
        sqlite_path(url), clock=wanted.clock, durability=settings.durability, lock_timeout_ms=settings.lock_timeout_ms
    )


def check_file(path: Path) -> FileReport:
    """Whether a storage file, or a backup of one, is sound. Raises `StorageCorruptError` where it cannot be read at
    all, `SchemaTooNewError` where a newer redrive wrote it.
    """
    from redrive.sqlite.backup import check  # noqa: PLC0415 - loaded only where used

    found = check(path)
    return FileReport(
        path=found.path,
        schema_version=found.schema_version,
        messages=found.messages,
        letters=found.letters,
        problems=found.problems,
    )


def restore_file(url: str, source: Path, *, replace: bool) -> Path | None:
    """Put a backup in the place of the file `url` names; where the old one is kept, None where there was none.

    Raises `UnsupportedError` where the broker is no file, `ConfigurationError` where the file exists and `replace` is
    not given or the backup is not sound, `BrokerUnavailableError` while a process has the file open.
    """
    from redrive.sqlite.backup import restore  # noqa: PLC0415 - loaded only where used

    if _scheme(url) != "sqlite":
        raise UnsupportedError(f'"{masked(url)}" is not a file redrive can restore. Nothing was changed.')
    return restore(source, sqlite_path(url), replace=replace)


def sqlite_path(url: str) -> str:
    """The file a sqlite URL names: three slashes are relative, four absolute."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(f'"{masked(url)}" is no URL of a file.') from None
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path:
        raise ConfigurationError(
            f'"{url}" names no file.', hint='Write "sqlite:///relative.db" or "sqlite:////absolute/path.db".'
        )
    if parts.query or parts.fragment:
        raise ConfigurationError(
            f'"{url}" has something after the file\'s name: sqlite URLs take no options.',
            hint="A ? in a name is written %3F, a # is written %23.",
        )
    return path


# ---------------------------------------------------------------------------------------------------- memory


def _memory(wanted: _Wanted) -> Backend:
    from redrive.brokers.memory import MemoryBroker  # noqa: PLC0415 - loaded only where used
    from redrive.runtime.ledger import OrderedLedger  # noqa: PLC0415
    from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore  # noqa: PLC0415

    clock = wanted.clock
    broker, claims, letters = MemoryBroker(clock=clock), MemoryClaimStore(clock=clock), MemoryLetterStore()
    jobs = MemoryJobStore(letters, clock=clock)
    ledger = OrderedLedger(broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock)
    return Backend(url=wanted.url, ledger=ledger, broker=broker, claims=claims, letters=letters, jobs=jobs)


# ---------------------------------------------------------------------------------------------------- RabbitMQ


def _rabbitmq(wanted: _Wanted) -> Backend:
    from redrive.brokers.rabbitmq.broker import RabbitBroker  # noqa: PLC0415 - loaded only where used
    from redrive.runtime.ledger import OrderedLedger  # noqa: PLC0415
    from redrive.sqlite.backup import backup  # noqa: PLC0415
    from redrive.stores.sqlite import SqliteClaimStore, SqliteJobStore, SqliteLetterStore  # noqa: PLC0415

    file = _store_file(wanted)
    broker = RabbitBroker(wanted.url, clock=wanted.clock, topology=wanted.topology)
    claims, letters, jobs = SqliteClaimStore(file), SqliteLetterStore(file), SqliteJobStore(file)
    topology = wanted.topology
    ledger = OrderedLedger(
        broker=broker,
        claims=claims,
        letters=letters,
        jobs=jobs,
        clock=wanted.clock,
        entry_of=lambda letter: dead_letter_outgoing(letter, topology.wiring(letter.queue)),
    )
    return Backend(
        url=masked(wanted.url),
        ledger=ledger,
        broker=broker,
        claims=claims,
        letters=letters,
        jobs=jobs,
        backup=lambda target: asyncio.to_thread(backup, file.path, target),
        send_leftovers=lambda limit: ledger.send_leftovers(limit=limit),
        local_store=str(file.path),
    )


def _store_file(wanted: _Wanted) -> SqliteFile:
    """The file beside a broker that has no store of its own."""
    url = wanted.settings.store
    if _scheme(url) != "sqlite":
        raise ConfigurationError(
            f'The store "{masked(url)}" is not one redrive knows. Nothing was consumed or published.',
            hint='Write store = "sqlite:///redrive.db".',
        )
    return _file(url, wanted)


def open_live(
    url: str,
    *,
    clock: Clock,
    management: str | None = None,
    without_management: bool = False,
    journal: Path | None = None,
) -> LiveBroker:
    """A broker to be worked on by hand, not yet opened. `management`: URL of its management API, None for the usual
    one; `journal`: file in which a redrive in place remembers what it sent, None for the user's own.

    Raises `UnsupportedError` where the broker is none with exchanges, `MissingExtraError` without its driver.
    """
    if _scheme(url) not in ("amqp", "amqps"):
        raise UnsupportedError(
            f'"{masked(url)}" is no RabbitMQ. Nothing was changed.', hint="Write amqp://host:5672/vhost."
        )
    try:
        from redrive.brokers.rabbitmq.live import RabbitLive  # noqa: PLC0415 - loaded only where used
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'The driver "{error.name}" for amqp:// is not installed.', hint='Run: pip install "redrive[rabbitmq]"'
        ) from error
    return RabbitLive(url, clock=clock, management=management, without_management=without_management, journal=journal)


_BACKENDS: Final[dict[str, Callable[[_Wanted], Backend]]] = {
    "sqlite": _sqlite,
    "memory": _memory,
    "amqp": _rabbitmq,
    "amqps": _rabbitmq,
}
_EXTRAS: Final = {"amqp": "rabbitmq", "amqps": "rabbitmq", "redis": "redis", "rediss": "redis"}
