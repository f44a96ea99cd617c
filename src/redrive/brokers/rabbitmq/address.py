"""Where the broker is: an `amqp://` URL with several hosts and options, read once.

    amqp://user:password@host1:5672,host2:5673/vhost?heartbeat=30&connection_timeout=5
    amqps://user@host/vhost?ca=/etc/ca.pem&cert=/etc/client.pem&key=/etc/client.key

`/%2F` and no path at all are the virtual host "/". No text made here holds the password.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from redrive.core.units import Millis
from redrive.errors import ConfigurationError
from redrive.server_url import MAX_PORT, TLS_OPTIONS, duration_in, hosts_in, options_in, tls_in

PLAIN_PORT: Final = 5672
TLS_PORT: Final = 5671

HEARTBEAT_S: Final = 30
"""A peer that is silent for this long, and a bit more, is taken for gone."""
CONNECT_TIMEOUT_MS: Final[Millis] = 10_000
"""For one host: TCP, TLS and the handshake."""
PUBLISH_TIMEOUT_MS: Final[Millis] = 30_000
"""How long a publish waits for its confirms, a broken or blocked connection included."""
MAX_PREFETCH: Final = 2_000
"""Most deliveries of one consumer that are pushed and not settled."""
_LARGEST_PREFETCH: Final = 65_535

_OPTIONS: Final = ("heartbeat", "connection_timeout", "publish_timeout", "prefetch", *TLS_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A broker's hosts and how to speak to them."""

    hosts: tuple[tuple[str, int], ...]
    vhost: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    heartbeat_s: int = HEARTBEAT_S
    connect_timeout_ms: Millis = CONNECT_TIMEOUT_MS
    publish_timeout_ms: Millis = PUBLISH_TIMEOUT_MS
    max_prefetch: int = MAX_PREFETCH
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    server_name: str | None = None

    @property
    def where(self) -> str:
        """For messages: hosts and virtual host, no credentials."""
        hosts = ", ".join(f"{host}:{port}" for host, port in self.hosts)
        return f'{hosts} (vhost "{self.vhost}")'


def parse(url: str) -> Address:
    """The address in a URL. Raises `ConfigurationError` naming what is wrong, never showing the password."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("amqp", "amqps") or not rest:
        raise ConfigurationError(
            "This is no RabbitMQ URL: amqp:// or amqps://, and then a host.",
            hint="Write amqp://host:5672/vhost, and before the host user, colon, password and an @.",
        )
    place, _, query = rest.partition("?")
    authority, slash, path = place.partition("/")
    login, _, hosts = authority.rpartition("@")
    user, colon, password = login.partition(":")
    options = options_in(query, _OPTIONS, server="RabbitMQ")
    is_tls = scheme == "amqps"
    return Address(
        hosts=hosts_in(hosts, TLS_PORT if is_tls else PLAIN_PORT, server="RabbitMQ"),
        vhost=unquote(path) if slash and path else "/",
        user=unquote(user) if user else "guest",
        password=unquote(password) if colon else ("guest" if not user else ""),
        heartbeat_s=_heartbeat(options),
        connect_timeout_ms=duration_in(options, "connection_timeout", CONNECT_TIMEOUT_MS),
        publish_timeout_ms=duration_in(options, "publish_timeout", PUBLISH_TIMEOUT_MS),
        max_prefetch=_prefetch(options),
        tls=tls_in(options, scheme=scheme, secure_scheme="amqps"),
        server_name=options.get("server_name"),
    )


def _heartbeat(options: dict[str, str]) -> int:
    text = options.get("heartbeat", str(HEARTBEAT_S))
    if not text.isascii() or not text.isdigit() or int(text) > MAX_PORT:
        raise ConfigurationError(f"The URL's heartbeat is {text!r}: whole seconds, 0 for none.")
    return int(text)


def _prefetch(options: dict[str, str]) -> int:
    text = options.get("prefetch", str(MAX_PREFETCH))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _LARGEST_PREFETCH:
        raise ConfigurationError(f"The URL's prefetch is {text!r}: it must be between 1 and {_LARGEST_PREFETCH}.")
    return int(text)
