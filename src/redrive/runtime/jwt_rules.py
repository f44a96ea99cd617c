"""Which JSON Web Tokens the admin API takes: the table `admin_jwt` of the settings."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from redrive.core.units import Millis, duration_ms
from redrive.errors import ConfigurationError

ALGORITHMS: Final = ("HS256", "RS256", "ES256")
SECRET_BYTES: Final = 32
"""Fewer than the hash has can be guessed. *Source*: RFC 7518 §3.2."""
SOURCES: Final = ("secret_file", "key_file", "jwks_file", "jwks_url")


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtRules:
    """Exactly one of the sources: `secret_file` (HS256), `key_file` (a public key in PEM), `jwks_file`, `jwks_url`.

    `issuer` and `audience`: what `iss` and `aud` must be; None does not look. `role_claim`: where viewer, operator or
    admin stands, as text or in a list. `leeway`: how far clocks may differ. Raises `ConfigurationError`.
    """

    algorithms: tuple[str, ...]
    secret_file: str | None = None
    key_file: str | None = None
    jwks_file: str | None = None
    jwks_url: str | None = None
    issuer: str | None = None
    audience: str | None = None
    role_claim: str = "role"
    leeway_ms: Millis = 60_000

    def __post_init__(self) -> None:
        _need(self.algorithms, f"algorithms is empty: name some of {', '.join(ALGORITHMS)}")
        for algorithm in self.algorithms:
            _need(algorithm in ALGORITHMS, f"algorithms has {algorithm!r:.40}: known are {', '.join(ALGORITHMS)}")
        given = [name for name in SOURCES if getattr(self, name) is not None]
        _need(len(given) == 1, f"it must have exactly one of {', '.join(SOURCES)}")
        # A public key is no secret: with both kinds allowed, who has it could sign with HS256.
        is_shared = "HS256" in self.algorithms
        _need(not is_shared or self.algorithms == ("HS256",), "HS256 cannot be mixed with RS256 or ES256")
        _need(is_shared == (self.secret_file is not None), "HS256 goes with secret_file, the others with public keys")
        _need(self.key_file is None or len(self.algorithms) == 1, "key_file is one key, for one algorithm")
        if self.jwks_url is not None:
            _need(_is_safe(self.jwks_url), "jwks_url must be https (or http on this machine)")
        if self.secret_file is not None:
            _need(_size(self.secret_file) >= SECRET_BYTES, f"secret_file must hold at least {SECRET_BYTES} bytes")


def jwt_rules_from(table: object, *, source: str) -> JwtRules:
    """The rules a settings table holds. Raises `ConfigurationError` naming what is wrong with it."""
    known = {field.name.removesuffix("_ms") for field in dataclasses.fields(JwtRules)}
    _need(isinstance(table, Mapping), f"{source} has no such table")
    assert isinstance(table, Mapping), "checked"
    unknown = sorted(str(name) for name in set(table) - known)
    _need(not unknown, f"{', '.join(unknown)[:80]} is unknown in {source}: known are {', '.join(sorted(known))}")
    values = dict(table)
    algorithms = values.pop("algorithms", ())
    _need(isinstance(algorithms, list | tuple), "algorithms must be a list")
    leeway = duration_ms(values.pop("leeway", "60s"), field="admin_jwt.leeway")
    for name, value in values.items():
        _need(isinstance(value, str) and value, f"{name} must be text")
    return JwtRules(algorithms=tuple(map(str, algorithms)), leeway_ms=leeway, **values)


def _need(condition: object, text: str) -> None:
    if not condition:
        raise ConfigurationError(f"admin_jwt: {text}.")


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return bool(host)
        return parts.scheme == "http" and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


def _size(path: str) -> int:
    try:
        return len(Path(path).read_bytes().strip())
    except OSError:
        return 0
