"""Where Redis is: a `redis://` URL with several hosts and options, read once.

    redis://user:password@host1:6379,host2:6379/0?prefix=bull&publish_timeout=30
    rediss://:password@host/0?ca=/etc/ca.pem&cert=/etc/client.pem&key=/etc/client.key
    redis://:password@sentinel1:26379,sentinel2:26379/0?sentinel=main

With `sentinel=NAME` the hosts are sentinels that know the master of that name. A cluster needs no option: any of its
nodes tells. No text made here holds the password.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from redrive.core.units import Millis
from redrive.errors import ConfigurationError
from redrive.server_url import TLS_OPTIONS, duration_in, hosts_in, options_in, tls_in

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
MAX_DATABASE: Final = 1_000_000

CONNECT_TIMEOUT_MS: Final[Millis] = 5_000
"""For one host: TCP, TLS and the greeting."""
ANSWER_TIMEOUT_MS: Final[Millis] = 10_000
"""A connection on which a command is not answered for so long is taken for broken."""
PUBLISH_TIMEOUT_MS: Final[Millis] = 30_000
"""How long a publish waits for its answer, a broken connection or a restarting server included."""
PREFIX: Final = "bull"
"""What BullMQ puts before every key, unless told otherwise."""

_FLAGS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_OPTIONS: Final = (
    "prefix", "sentinel", "sentinel_password", "connection_timeout", "answer_timeout", "publish_timeout",
    "keep_completed", "keep_failed", *TLS_OPTIONS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A server's hosts and how to speak to them. `sentinel`: the hosts are sentinels, and know the master of this name.

    `keep_completed`, `keep_failed`: whether jobs that redrive makes stay in BullMQ's sets once they have ended.
    """

    hosts: tuple[tuple[str, int], ...]
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    prefix: str = PREFIX
    sentinel: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    connect_timeout_ms: Millis = CONNECT_TIMEOUT_MS
    answer_timeout_ms: Millis = ANSWER_TIMEOUT_MS
    publish_timeout_ms: Millis = PUBLISH_TIMEOUT_MS
    keep_completed: bool = False
    keep_failed: bool = False
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    server_name: str | None = None

    @property
    def where(self) -> str:
        """For messages: hosts and database, no credentials."""
        hosts = ", ".join(f"{host}:{port}" for host, port in self.hosts)
        if self.sentinel is not None:
            return f'master "{self.sentinel}" of the sentinels {hosts}'
        return f"{hosts} (database {self.database})"


def parse(url: str) -> Address:
    """The address in a URL. Raises `ConfigurationError` naming what is wrong, never showing the password."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("redis", "rediss") or not rest:
        raise ConfigurationError("A Redis URL starts with redis:// or rediss://.", hint="redis://:password@host:6379/0")
    place, _, query = rest.partition("?")
    authority, _, path = place.partition("/")
    login, at, hosts = authority.rpartition("@")
    user, colon, password = login.partition(":")
    if at and not colon and user:
        raise ConfigurationError(
            "The Redis URL has a user and no password.",
            hint="Write redis://:password@host or redis://user:password@host.",
        )
    options = options_in(query, _OPTIONS, server="Redis")
    sentinel = options.get("sentinel") or None
    return Address(
        hosts=hosts_in(hosts, SENTINEL_PORT if sentinel else PORT, server="Redis"),
        database=_database(path),
        user=unquote(user) if at and colon and user else None,
        password=unquote(password) if at and colon else None,
        prefix=_prefix(options),
        sentinel=sentinel,
        sentinel_password=options.get("sentinel_password") or None,
        connect_timeout_ms=duration_in(options, "connection_timeout", CONNECT_TIMEOUT_MS),
        answer_timeout_ms=duration_in(options, "answer_timeout", ANSWER_TIMEOUT_MS),
        publish_timeout_ms=duration_in(options, "publish_timeout", PUBLISH_TIMEOUT_MS),
        keep_completed=_flag(options, "keep_completed"),
        keep_failed=_flag(options, "keep_failed"),
        tls=tls_in(options, scheme=scheme, secure_scheme="rediss"),
        server_name=options.get("server_name"),
    )


def _database(path: str) -> int:
    if path and not (path.isascii() and path.isdigit() and int(path) < MAX_DATABASE):
        raise ConfigurationError(f'"/{path}" is no database of a Redis URL.', hint="Write its number: redis://host/0")
    return int(path or 0)


def _prefix(options: dict[str, str]) -> str:
    prefix = options.get("prefix", PREFIX)
    if not prefix or not prefix.isprintable():
        raise ConfigurationError(f"The URL's prefix is {prefix!r}: it must be a printable text.")
    return prefix


def _flag(options: dict[str, str], name: str) -> bool:
    text = options.get(name, "false")
    if text.lower() not in _FLAGS:
        raise ConfigurationError(f"The URL's {name} is {text!r}: it must be true or false.")
    return _FLAGS[text.lower()]
