"""From a URL to the adapters behind it: the only module that names any.

`sqlite:///file.db` and `memory://` bring all that an app needs. `amqp://host/vhost` is a broker alone: its claims,
letters and jobs live in the store the setting `store` names. `redis://host/0` is a broker with its claims; letters and
jobs live in that store; its claims too, where that is a server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from redrive.core.audit import RequestStore
from redrive.core.doctor import RedisReading
from redrive.core.live import LiveBroker
from redrive.core.policy.control import ControlStore
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import Rate
from redrive.core.policy.retry import Retry
from redrive.core.policy.standing import Standing
from redrive.core.ports import Broker, ClaimStore, Clock, FailedJobs, GroupStore, JobStore, LetterStore
from redrive.core.topology.entry import dead_letter_outgoing
from redrive.core.topology.model import EMPTY, Topology
from redrive.errors import ConfigurationError, MissingExtraError, UnsupportedError
from redrive.runtime.backend import Backend, FileReport
from redrive.runtime.dead_letter_queues import EntryOf, LetterDocument
from redrive.runtime.settings import Settings

if TYPE_CHECKING:
    from redrive.sqlite import SqliteFile


def open_backend(
    url: str,
    *,
    clock: Clock,
    settings: Settings,
    topology: Topology = EMPTY,
    retries: Mapping[str, Retry] | None = None,
    fair: Mapping[str, Fair] | None = None,
    rates: Mapping[str, Rate] | None = None,
    documents: Mapping[str, LetterDocument] | None = None,
) -> Backend:
    """The adapters behind a URL, not yet opened. `topology`: what a broker with exchanges declares, and how its queues
    retry. `retries`: the rules of this app's consumers, by queue, for brokers whose messages carry one. `documents`:
    how their dead letters lie in a dead-letter queue of the broker.

    `fair`, `rates`: which of its queues are served in turns between tenants (looked into at each take), and the rates
    that all workers of a queue share, for brokers that can.

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
        return maker(
            _Wanted(
                url=url,
                clock=clock,
                settings=settings,
                topology=topology,
                retries=retries or {},
                fair={} if fair is None else fair,
                rates=rates or {},
                documents=documents or {},
            )
        )
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
    retries: Mapping[str, Retry]
    fair: Mapping[str, Fair]
    rates: Mapping[str, Rate]
    documents: Mapping[str, LetterDocument]


def masked(url: str) -> str:
    """The URL, or what was meant as one, with its passwords hidden, for logs and messages."""
    url = _PASSWORD_OPTION.sub(r"\1***", url)
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


_PASSWORD_OPTION: Final = re.compile(r"([?&]\w*password=)[^&]*")

# ---------------------------------------------------------------------------------------------------- one file


def _sqlite(wanted: _Wanted) -> Backend:
    from redrive.brokers.sqlite import SqliteBroker  # noqa: PLC0415 - loaded only where used
    from redrive.sqlite import SqliteLedger  # noqa: PLC0415
    from redrive.sqlite.backup import backup  # noqa: PLC0415
    from redrive.stores.sqlite import (  # noqa: PLC0415
        SqliteClaimStore,
        SqliteControlStore,
        SqliteGroupStore,
        SqliteJobStore,
        SqliteLetterStore,
        SqliteRequestStore,
    )

    file = _file(wanted.url, wanted)
    broker = SqliteBroker(file)
    return Backend(
        url=wanted.url,
        ledger=SqliteLedger(file),
        broker=broker,
        claims=SqliteClaimStore(file),
        letters=SqliteLetterStore(file),
        groups=SqliteGroupStore(file),
        jobs=SqliteJobStore(file),
        controls=SqliteControlStore(file),
        requests=SqliteRequestStore(file),
        standings=lambda queue, limit: broker.standings(queue, limit=limit),
        backup=lambda target: asyncio.to_thread(backup, file.path, target),
    )


def _file(url: str, wanted: _Wanted) -> SqliteFile:
    from redrive.sqlite import SqliteFile  # noqa: PLC0415 - loaded only where used

    settings = wanted.settings
    return SqliteFile(
        sqlite_path(url),
        clock=wanted.clock,
        durability=settings.durability,
        lock_timeout_ms=settings.lock_timeout_ms,
        fair=wanted.fair,
        rates=wanted.rates,
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
    from redrive.stores.memory import (  # noqa: PLC0415
        MemoryClaimStore,
        MemoryControlStore,
        MemoryJobStore,
        MemoryLetterStore,
        MemoryRequestStore,
    )

    clock = wanted.clock
    broker, claims, letters = (
        MemoryBroker(clock=clock, fair=wanted.fair, rates=wanted.rates),
        MemoryClaimStore(clock=clock),
        MemoryLetterStore(),
    )
    jobs = MemoryJobStore(letters, clock=clock)
    ledger = OrderedLedger(
        broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock, documents=wanted.documents
    )
    return Backend(
        url=wanted.url,
        ledger=ledger,
        broker=broker,
        claims=claims,
        letters=letters,
        groups=letters.groups,
        jobs=jobs,
        drop_entries=ledger.drop_entries,
        controls=MemoryControlStore(),
        requests=MemoryRequestStore(),
    )


# ---------------------------------------------------------------------------------------------------- RabbitMQ


def _rabbitmq(wanted: _Wanted) -> Backend:
    from redrive.brokers.rabbitmq.broker import RabbitBroker  # noqa: PLC0415 - loaded only where used

    store = _store(wanted)
    broker = RabbitBroker(wanted.url, clock=wanted.clock, topology=wanted.topology, fair=wanted.fair)
    topology = wanted.topology
    return _with_store_beside(
        wanted,
        store,
        broker=broker,
        claims=store.claims,
        controls=store.controls,
        entry_of=lambda letter: dead_letter_outgoing(letter, topology.wiring(letter.queue)),
    )


# ---------------------------------------------------------------------------------------------------- Redis


def _redis(wanted: _Wanted) -> Backend:
    from redrive.brokers.bullmq.broker import BullBroker  # noqa: PLC0415 - loaded only where used
    from redrive.brokers.bullmq.retrying import options_of  # noqa: PLC0415
    from redrive.stores.redis.claims import RedisClaimStore  # noqa: PLC0415
    from redrive.stores.redis.controls import RedisControlStore  # noqa: PLC0415

    store = _store(wanted)
    options = {queue: options_of(retry) for queue, retry in wanted.retries.items()}
    broker = BullBroker(wanted.url, clock=wanted.clock, options=options, rates=wanted.rates, fair=wanted.fair)
    # A store that all hosts share has the claims, too: other tools read them there, and PostgreSQL's have transactions.
    claims = store.claims if store.is_shared else RedisClaimStore(wanted.url, clock=wanted.clock)
    return _with_store_beside(
        wanted,
        store,
        broker=broker,
        claims=claims,
        controls=RedisControlStore(wanted.url, clock=wanted.clock),
        standings=lambda queue, limit: broker.standings(queue, limit=limit),
        failed=broker.failed,
    )


# ------------------------------------------------------------------------------------ a server, and a store beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    """A store beside a broker. `is_shared`: other hosts use it too. `path`: of a file of this host."""

    claims: ClaimStore
    letters: LetterStore
    groups: GroupStore
    jobs: JobStore
    controls: ControlStore
    requests: RequestStore
    is_shared: bool
    backup: Callable[[Path], Awaitable[None]]
    path: str | None = None


def _with_store_beside(
    wanted: _Wanted,
    store: _Store,
    *,
    broker: Broker,
    claims: ClaimStore,
    controls: ControlStore,
    standings: Callable[[str, int], Awaitable[Sequence[Standing]]] | None = None,
    entry_of: EntryOf | None = None,
    failed: FailedJobs | None = None,
) -> Backend:
    """A broker without a store for letters and jobs: those lie in the store. `entry_of`: as `OrderedLedger` has it."""
    from redrive.runtime.ledger import OrderedLedger  # noqa: PLC0415 - loaded only where used

    ledger = OrderedLedger(
        broker=broker,
        claims=claims,
        letters=store.letters,
        jobs=store.jobs,
        clock=wanted.clock,
        entry_of=entry_of,
        documents=wanted.documents,
    )
    return Backend(
        url=masked(wanted.url),
        ledger=ledger,
        broker=broker,
        claims=claims,
        letters=store.letters,
        groups=store.groups,
        jobs=store.jobs,
        backup=store.backup,
        send_leftovers=lambda limit: ledger.send_leftovers(limit=limit),
        drop_entries=ledger.drop_entries,
        controls=controls,
        requests=store.requests,
        standings=standings,
        local_store=store.path,
        failed=failed,
    )


def _store(wanted: _Wanted) -> _Store:
    """The store that the settings name for a broker that has none of its own."""
    url = wanted.settings.store
    maker = _STORES.get(_scheme(url))
    if maker is None:
        raise ConfigurationError(
            f'The store "{masked(url)}" is not one redrive knows. Nothing was consumed or published.',
            hint='Write store = "sqlite:///redrive.db", "postgresql://user@host/database" or "mongodb://host/database".',
        )
    try:
        return maker(wanted)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "redrive":
            raise
        extra = _EXTRAS.get(_scheme(url), _scheme(url))
        raise MissingExtraError(
            f'The driver "{error.name}" for the store {_scheme(url)}:// is not installed.',
            hint=f'Run: pip install "redrive[{extra}]"',
        ) from error


def _sqlite_store(wanted: _Wanted) -> _Store:
    from redrive.sqlite.backup import backup  # noqa: PLC0415 - loaded only where used
    from redrive.stores.sqlite import (  # noqa: PLC0415
        SqliteClaimStore,
        SqliteControlStore,
        SqliteGroupStore,
        SqliteJobStore,
        SqliteLetterStore,
        SqliteRequestStore,
    )

    file = _file(wanted.settings.store, wanted)
    return _Store(
        claims=SqliteClaimStore(file),
        letters=SqliteLetterStore(file),
        groups=SqliteGroupStore(file),
        jobs=SqliteJobStore(file),
        controls=SqliteControlStore(file),
        requests=SqliteRequestStore(file),
        is_shared=False,
        backup=lambda target: asyncio.to_thread(backup, file.path, target),
        path=str(file.path),
    )


def _postgres_store(wanted: _Wanted) -> _Store:
    from redrive.postgres import Database  # noqa: PLC0415 - loaded only where used
    from redrive.stores.postgres import (  # noqa: PLC0415
        PostgresClaimStore,
        PostgresControlStore,
        PostgresGroupStore,
        PostgresJobStore,
        PostgresLetterStore,
        PostgresRequestStore,
    )

    database = Database(wanted.settings.store)
    return _Store(
        claims=PostgresClaimStore(database),
        letters=PostgresLetterStore(database),
        groups=PostgresGroupStore(database),
        jobs=PostgresJobStore(database),
        controls=PostgresControlStore(database),
        requests=PostgresRequestStore(database),
        is_shared=True,
        backup=_no_backup(database.shown, "pg_dump"),
    )


def _mongodb_store(wanted: _Wanted) -> _Store:
    from redrive.stores.mongodb.claims import MongoClaimStore  # noqa: PLC0415 - loaded only where used
    from redrive.stores.mongodb.controls import MongoControlStore  # noqa: PLC0415
    from redrive.stores.mongodb.jobs import MongoJobStore  # noqa: PLC0415
    from redrive.stores.mongodb.letters import MongoLetterStore  # noqa: PLC0415
    from redrive.stores.mongodb.link import Link  # noqa: PLC0415
    from redrive.stores.mongodb.requests import MongoRequestStore  # noqa: PLC0415

    link = Link(wanted.settings.store)
    letters = MongoLetterStore(link, clock=wanted.clock)
    return _Store(
        claims=MongoClaimStore(link, clock=wanted.clock),
        letters=letters,
        groups=letters.groups,
        jobs=MongoJobStore(link, letters, clock=wanted.clock),
        controls=MongoControlStore(link),
        requests=MongoRequestStore(link),
        is_shared=True,
        backup=_no_backup(masked(wanted.settings.store), "mongodump"),
    )


def _no_backup(shown: str, tool: str) -> Callable[[Path], Awaitable[None]]:
    async def backup(target: Path) -> None:
        raise UnsupportedError(
            f'"{shown}" is no file of redrive. Nothing was written to "{target}".',
            hint=f"Its letters and claims are in the database's own backups: {tool}, or what your provider makes.",
        )

    return backup


_STORES: Final[dict[str, Callable[[_Wanted], _Store]]] = {
    "sqlite": _sqlite_store,
    "postgresql": _postgres_store,
    "postgres": _postgres_store,
    "mongodb": _mongodb_store,
    "mongodb+srv": _mongodb_store,
}


def server_url(settings: Settings) -> str | None:
    """The URL of the Redis server that the broker lies on; None where it is none."""
    return settings.broker if _scheme(settings.broker) in ("redis", "rediss") else None


async def read_server(url: str) -> RedisReading:
    """What a Redis server says of its settings and state, on a connection of its own.

    Raises `BrokerUnavailableError` where it does not answer, `ConfigurationError`, and `MissingExtraError` without its
    driver.
    """
    try:
        from redrive.brokers.bullmq.checkup import read  # noqa: PLC0415 - loaded only where used
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "redrive":
            raise
        raise MissingExtraError(
            f'The driver "{error.name}" for redis:// is not installed.', hint='Run: pip install "redrive[redis]"'
        ) from error
    return await read(url)


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
    "redis": _redis,
    "rediss": _redis,
}
_EXTRAS: Final = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "redis": "redis",
    "rediss": "redis",
    "postgresql": "postgres",
    "mongodb+srv": "mongodb",
}
