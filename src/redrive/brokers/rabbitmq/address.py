"""Where the broker is: an `amqp://` URL with several hosts and options, read once.

    amqp://user:password@host1:5672,host2:5673/vhost?heartbeat=30&connection_timeout=5
    amqps://user@host/vhost?ca=/etc/ca.pem&cert=/etc/client.pem&key=/etc/client.key

`/%2F` and no path at all are the virtual host "/". No text made here holds the password.
"""

from __future__ import annotations

import difflib
import os
import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from redrive.core.units import Millis, duration_ms
from redrive.errors import ConfigurationError

PLAIN_PORT: Final = 5672
TLS_PORT: Final = 5671
MAX_PORT: Final = 65_535

HEARTBEAT_S: Final = 30
"""A peer that is silent for this long, and a bit more, is taken for gone."""
CONNECT_TIMEOUT_MS: Final[Millis] = 10_000
"""For one host: TCP, TLS and the handshake."""
PUBLISH_TIMEOUT_MS: Final[Millis] = 30_000
"""How long a publish waits for its confirms, a broken or blocked connection included."""
MAX_PREFETCH: Final = 2_000
"""Most deliveries of one consumer that are pushed and not settled."""
_LARGEST_PREFETCH: Final = 65_535

_TLS_OPTIONS: Final = ("ca", "cert", "key", "server_name")
_OPTIONS: Final = ("heartbeat", "connection_timeout", "publish_timeout", "prefetch", *_TLS_OPTIONS)


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
    options = _options(query)
    is_tls = scheme == "amqps"
    for name in _TLS_OPTIONS:
        if name in options and not is_tls:
            raise ConfigurationError(f"The URL's option {name} is for amqps:// only.", hint="Write amqps://…")
    return Address(
        hosts=_hosts(hosts, TLS_PORT if is_tls else PLAIN_PORT),
        vhost=unquote(path) if slash and path else "/",
        user=unquote(user) if user else "guest",
        password=unquote(password) if colon else ("guest" if not user else ""),
        heartbeat_s=_heartbeat(options),
        connect_timeout_ms=_duration(options, "connection_timeout", CONNECT_TIMEOUT_MS),
        publish_timeout_ms=_duration(options, "publish_timeout", PUBLISH_TIMEOUT_MS),
        max_prefetch=_prefetch(options),
        tls=_tls(options) if is_tls else None,
        server_name=options.get("server_name"),
    )


def _hosts(text: str, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = tuple(_host(part.strip(), default_port) for part in (text or "localhost").split(","))
    return tuple(dict.fromkeys(hosts))


def _host(text: str, default_port: int) -> tuple[str, int]:
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        is_whole = bool(closed) and (not port or port.startswith(":"))
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
        is_whole = True
    if not host or not is_whole or (port and not (port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT)):
        raise ConfigurationError(
            f'"{text}" is no host of a RabbitMQ URL.', hint="Write host, host:port or [::1]:port, several with commas."
        )
    return host, int(port) if port else default_port


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(_OPTIONS)}."
            raise ConfigurationError(f"The RabbitMQ URL's option {name} is unknown.", hint=hint)
    return options


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


def _duration(options: dict[str, str], name: str, default: Millis) -> Millis:
    if name not in options:
        return default
    text = options[name]
    seconds = float(text) if text.replace(".", "", 1).isdigit() and text.isascii() else text
    found = duration_ms(seconds, field=f"the URL's {name}")
    if not found:
        raise ConfigurationError(f"The URL's {name} is {text!r}: it must be longer than nothing.")
    return found


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    for name in ("ca", "cert", "key"):
        if name in options and not os.path.isfile(options[name]):  # noqa: PTH113 - a path from outside, only asked for
            raise ConfigurationError(f'The URL\'s {name} file "{options[name]}" is not there.')
    if "key" in options and "cert" not in options:
        raise ConfigurationError("The URL names a key file but no cert file.")
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(f"The URL's ca, cert or key file cannot be used: {error}.") from error
    return context
