"""What the URLs of servers have in common, whichever server it is: several hosts, options, durations, TLS.

`server` is what the server is called in messages ("Redis"). Everything raises `ConfigurationError` naming what is
wrong; no text made here holds a password.
"""

from __future__ import annotations

import difflib
import os
import ssl
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from redrive.core.units import Millis, duration_ms
from redrive.errors import ConfigurationError

MAX_PORT: Final = 65_535
TLS_OPTIONS: Final = ("ca", "cert", "key", "server_name")
"""Options that every server's URL has where TLS is spoken."""

Host: TypeAlias = "tuple[str, int]"


def hosts_in(text: str, default_port: int, *, server: str) -> tuple[Host, ...]:
    """`host1:1,host2,[::1]:3`, each once; none at all is this machine."""
    hosts = (_host(part.strip(), default_port, server) for part in (text or "localhost").split(","))
    return tuple(dict.fromkeys(hosts))


def _host(text: str, default_port: int, server: str) -> Host:
    is_whole = True
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        is_whole = bool(closed) and (not port or port.startswith(":"))
        port = port.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or not is_whole or (port and not (port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT)):
        raise ConfigurationError(
            f'"{text}" is no host of a {server} URL.', hint="Write host, host:port or [::1]:port, several with commas."
        )
    return host, int(port) if port else default_port


def options_in(query: str, known: Sequence[str], *, server: str) -> dict[str, str]:
    """The options behind the question mark; one nobody knows is refused with the nearest that is known."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
            raise ConfigurationError(f"The {server} URL's option {name} is unknown.", hint=hint)
    return options


def duration_in(options: Mapping[str, str], name: str, default: Millis) -> Millis:
    """An option that is a duration; a bare number is seconds."""
    if name not in options:
        return default
    text = options[name]
    seconds = float(text) if text.replace(".", "", 1).isdigit() and text.isascii() else text
    found = duration_ms(seconds, field=f"the URL's {name}")
    if not found:
        raise ConfigurationError(f"The URL's {name} is {text!r}: it must be longer than nothing.")
    return found


def tls_in(options: Mapping[str, str], *, scheme: str, secure_scheme: str) -> ssl.SSLContext | None:
    """How TLS is spoken; None where it is not, by the URL's scheme, and then none of its options may be there."""
    if scheme == secure_scheme:
        return _context(options)
    for name in TLS_OPTIONS:
        if name in options:
            raise ConfigurationError(
                f"The URL's option {name} is for {secure_scheme}:// only.", hint=f"Write {secure_scheme}://…"
            )
    return None


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
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
