"""Target: the URL messages are pushed to, checked once. Its credentials never show in a log or an error."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from redrive.errors import ConfigurationError
from redrive.push.addresses import refusal_of

SCHEMES: Final = ("http", "https")
MAX_URL_CHARS: Final = 2_048

PRIVATE_HINT: Final = (
    "redrive pushes to addresses of the public internet only, because a URL from outside could reach into your network."
    " If this one is yours, allow it with --allow-private (allow_private=True)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to push. `url` has no credentials in it; `authorization` is the header they make, or None."""

    url: str
    host: str
    authorization: str | None = field(default=None, repr=False)


def parse_target(text: str, *, authorization: str | None = None, allow_private: bool = False) -> Target:
    """The target a URL names; user and password in it become the Authorization header, unless one is given.

    Raises `ConfigurationError` for anything but http(s) with a host, and for the literal address of a host that is
    not on the public internet unless `allow_private`. Names are looked up later, for every connection.
    """
    parts = _split(text)
    host = parts.hostname or ""
    _check_host(host, allow_private=allow_private)
    if authorization is None and parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode('ascii')}"
    if authorization is not None and not _is_header_text(authorization):
        raise ConfigurationError("The Authorization header has characters that no header may have. It is not shown.")
    netloc = parts.netloc.rpartition("@")[2]
    return Target(url=parts._replace(netloc=netloc, fragment="").geturl(), host=host, authorization=authorization)


def _split(text: str) -> SplitResult:
    """The parts of an http(s) URL. What is wrong is said without showing it: it may hold a password."""
    hint = "Write for example https://service.example/messages."
    if len(text) > MAX_URL_CHARS or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError(
            f"The URL to push to is longer than {MAX_URL_CHARS} characters, or has blanks or characters beyond ASCII.",
            hint=hint,
        )
    try:
        parts = urlsplit(text)
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        raise ConfigurationError("The URL to push to has a wrong host or port.", hint=hint) from None
    if parts.scheme not in SCHEMES or not parts.hostname or not is_port:
        raise ConfigurationError("The URL to push to is not http:// or https:// with a host.", hint=hint)
    return parts


def _check_host(host: str, *, allow_private: bool) -> None:
    if allow_private:
        return
    if "." not in host and ":" not in host:
        # A name without a dot is a name of the local network, whatever it resolves to.
        raise ConfigurationError(f'"{host}" is a name of the local network. Nothing was pushed.', hint=PRIVATE_HINT)
    why = refusal_of(host) if _is_literal(host) else None
    if why is not None:
        raise ConfigurationError(f'"{host}" is {why}. Nothing was pushed.', hint=PRIVATE_HINT)


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _is_header_text(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text.strip())
