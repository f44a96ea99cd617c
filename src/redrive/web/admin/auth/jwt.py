"""JSON Web Tokens: HS256, RS256 and ES256, with a key, a file of keys, or a JWKS URL whose keys change.

What is refused, and why: an algorithm that is not in the settings (`none` never is), a key of another kind than the
algorithm needs (a public key must never serve as an HS256 secret: settings with both kinds are refused), a `crit`
header, a key id that is no short text, a token without `exp` or `sub`, one that is over or not valid yet (60 s of
clock difference are allowed), of another issuer or for another audience, and one without a role.

Keys of a URL are fetched when they are first needed, when a token names one nobody knows, and when they are
`MAX_AGE_MS` old; never more often than once in `REFETCH_MS`, whatever strangers send. Where fetching fails the keys
known stay in force, and without any the answer is 503.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from redrive.core.access import Role
from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.errors import ConfigurationError, MissingExtraError
from redrive.runtime.jwt_rules import JwtRules
from redrive.web.admin.problems import refuse

MAX_TOKEN_CHARS: Final = 8_192
MAX_KID_CHARS: Final = 200
MAX_SUB_CHARS: Final = 200
MAX_KEYS: Final = 100
MAX_JWKS_BYTES: Final = 262_144
FETCH_TIMEOUT_S: Final = 5
REFETCH_MS: Final[Millis] = 30_000
MAX_AGE_MS: Final[Millis] = 600_000

_KINDS: Final = {"RS256": ("RSA", None), "ES256": ("EC", "P-256")}

Fetch = Callable[[str], bytes]


class BadToken(Exception):
    """Not a token we accept. Its text says why to the log, never to the one who sent it, and holds nothing of it."""


class JwtVerifier:
    """Checks tokens by the rules of the settings. Raises `MissingExtraError` without PyJWT."""

    def __init__(self, rules: JwtRules, clock: Clock, *, fetch: Fetch | None = None) -> None:
        try:
            import jwt  # noqa: PLC0415 - an extra
            from jwt.algorithms import RSAAlgorithm  # noqa: F401, PLC0415 - there only with cryptography
        except ImportError:
            raise MissingExtraError("JSON Web Tokens need PyJWT.", hint="Run: pip install 'redrive[web]'") from None
        self._jwt = jwt
        self._rules = rules
        self._clock = clock
        self._keys = _Keys(rules, clock, fetch=_fetched if fetch is None else fetch)

    async def verify(self, token: str) -> tuple[str, Role]:
        """(subject, role). Raises `BadToken`; `Refused` (503) where no key can be fetched."""
        if len(token) > MAX_TOKEN_CHARS:
            raise BadToken("too long")
        header = self._header(token)
        algorithm = header.get("alg")
        if algorithm not in self._rules.algorithms:
            raise BadToken("algorithm not allowed")
        key = await self._keys.key_for(str(algorithm), header.get("kid"))
        return self._claims(token, key, str(algorithm))

    def _header(self, token: str) -> Mapping[str, Any]:
        try:
            header = self._jwt.get_unverified_header(token)
        except (self._jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise BadToken("no token") from None
        if "crit" in header:
            raise BadToken("critical header")
        return header

    def _claims(self, token: str, key: Any, algorithm: str) -> tuple[str, Role]:
        rules = self._rules
        try:
            claims = self._jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=rules.issuer,
                audience=rules.audience,
                # Times are compared below, with the clock that everything else here goes by.
                options={
                    "require": ["exp", "sub"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": rules.audience is not None,
                    "verify_iss": rules.issuer is not None,
                },
            )
        except (self._jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise BadToken(type(error).__name__) from None
        self._check_times(claims)
        return _subject(claims.get("sub")), _role(claims.get(rules.role_claim))

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now, leeway = self._clock.now() / 1_000, self._rules.leeway_ms / 1_000
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name)
            if value is None and name != "exp":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise BadToken(f"{name} is no time")
            # Written so that NaN is refused, too.
            is_good = value + leeway > now if name == "exp" else value - leeway <= now
            if not is_good:
                raise BadToken("over" if name == "exp" else "not valid yet")


def _subject(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_SUB_CHARS or not value.isprintable():
        raise BadToken("sub is no name")
    return value


def _role(value: Any) -> Role:
    """The highest role the claim names; a name that is no role of ours is not looked at."""
    given = value if isinstance(value, list) else [value]
    roles = [Role(each) for each in given[:MAX_KEYS] if isinstance(each, str) and each in set(Role)]
    if not roles:
        raise BadToken("no role")
    return max(roles, key=lambda role: role.rank)


class _Keys:
    """The keys there are, by key id."""

    def __init__(self, rules: JwtRules, clock: Clock, *, fetch: Fetch) -> None:
        self._rules = rules
        self._clock = clock
        self._fetch = fetch
        self._documents: list[Mapping[str, Any]] | None = None
        self._tried_ms: float | None = None
        self._fetched_ms: float = 0
        self._fetching = asyncio.Lock()

    async def key_for(self, algorithm: str, kid: Any) -> Any:
        """The one key that fits. Raises `BadToken`; `Refused` where none can be fetched."""
        if kid is not None and (not isinstance(kid, str) or len(kid) > MAX_KID_CHARS):
            raise BadToken("kid is no name")
        rules = self._rules
        if rules.secret_file is not None:
            return _secret(Path(rules.secret_file))
        if rules.key_file is not None:
            return _public_key(Path(rules.key_file), algorithm)
        found = self._fitting(await self._known(is_new=False), algorithm, kid)
        if found is None:
            found = self._fitting(await self._known(is_new=True), algorithm, kid)
        if found is None:
            raise BadToken("key not known")
        return found

    def _fitting(self, documents: list[Mapping[str, Any]], algorithm: str, kid: str | None) -> Any:
        kind, curve = _KINDS[algorithm]
        fitting = [
            each
            for each in documents
            if each.get("kty") == kind
            and (curve is None or each.get("crv") == curve)
            and each.get("alg", algorithm) == algorithm
            and each.get("use", "sig") == "sig"
            and (kid is None or each.get("kid") == kid)
        ]
        if len(fitting) != 1:  # none, or without a kid nobody knows which
            return None
        from jwt import PyJWK  # noqa: PLC0415 - an extra, there by now
        from jwt.exceptions import PyJWTError  # noqa: PLC0415

        try:
            return PyJWK(dict(fitting[0]), algorithm=algorithm).key
        except (PyJWTError, ValueError, TypeError):
            return None

    async def _known(self, *, is_new: bool) -> list[Mapping[str, Any]]:
        rules = self._rules
        if rules.jwks_file is not None:
            return _documents(_file_bytes(Path(rules.jwks_file)))
        async with self._fetching:
            now = self._clock.monotonic_ms()
            is_stale = self._documents is None or is_new or now - self._fetched_ms >= MAX_AGE_MS
            if is_stale and (self._tried_ms is None or now - self._tried_ms >= REFETCH_MS):
                self._tried_ms = now
                await self._refresh(now)
            if self._documents is None:
                raise refuse("keys_unavailable")
            return self._documents

    async def _refresh(self, now: float) -> None:
        assert self._rules.jwks_url is not None, "the rules name one source of keys"
        try:
            self._documents = _documents(await asyncio.to_thread(self._fetch, self._rules.jwks_url))
            self._fetched_ms = now
        except (OSError, ValueError, ConfigurationError):
            return  # what is known stays in force


def _fetched(url: str) -> bytes:
    """Settings let only https, or http on this machine, get here."""
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(url, timeout=FETCH_TIMEOUT_S) as answer:
        return bytes(answer.read(MAX_JWKS_BYTES + 1))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keys come from where the settings say, and from nowhere else."""

    def redirect_request(self, *_given: Any, **_named: Any) -> None:
        return None


def _documents(raw: bytes) -> list[Mapping[str, Any]]:
    try:
        keys = json.loads(raw)["keys"] if len(raw) <= MAX_JWKS_BYTES else None
    except (ValueError, KeyError, TypeError, RecursionError):
        keys = None
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise ConfigurationError(f"A key set is no JWKS document of at most {MAX_KEYS} keys.")
    return [each for each in keys if isinstance(each, dict)]


def _file_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_JWKS_BYTES + 1)
    except OSError:
        raise refuse("keys_unavailable") from None


def _secret(path: Path) -> bytes:
    return _file_bytes(path).strip()


def _public_key(path: Path, algorithm: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    try:
        key = load_pem_public_key(_file_bytes(path))
    except ValueError:
        raise refuse("keys_unavailable") from None
    if not isinstance(key, RSAPublicKey if algorithm == "RS256" else EllipticCurvePublicKey):
        raise BadToken("key of another kind")
    return key
