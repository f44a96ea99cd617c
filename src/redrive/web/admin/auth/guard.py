"""Guard: from a request to who asks, or to the refusal."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redrive.core.access import Role
from redrive.core.ports import Clock
from redrive.errors import ConfigurationError
from redrive.runtime.app import Redrive
from redrive.runtime.events import Events
from redrive.web.admin.auth.jwt import BadToken, JwtVerifier
from redrive.web.admin.auth.logins import Logins
from redrive.web.admin.auth.tokens import PREFIX, TokenFile, hash_of, new_secret
from redrive.web.admin.problems import refuse

ONE_TIME_NAME: Final = "one-time"
CHALLENGE: Final = {"www-authenticate": 'Bearer realm="redrive"'}
HOW: Final = (
    "Make a token with `redrive token create NAME --role operator`, or set admin_jwt; or bind to 127.0.0.1, where a "
    "one-time token is printed."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks. `name` is what audit trails say."""

    name: str
    role: Role


class Guard:
    """Looks at bearer tokens. `one_time`: a token that is good for as long as this process lives."""

    def __init__(
        self,
        clock: Clock,
        events: Events,
        *,
        tokens: TokenFile | None = None,
        jwt: JwtVerifier | None = None,
        one_time: str | None = None,
    ) -> None:
        if tokens is None and jwt is None and one_time is None:
            raise ConfigurationError("The admin API is never open to everybody.", hint=HOW)
        self._clock = clock
        self._events = events
        self.tokens = tokens
        self._jwt = jwt
        self._one_time_hash = None if one_time is None else hash_of(one_time)
        self._logins = Logins()

    async def identify(self, authorization: str | None, *, address: str) -> Principal:
        """Who asks. Raises `Refused`: 401 without a good token, 429 after too many bad ones, 503 without keys."""
        if authorization is None:
            raise refuse("unauthenticated", "Send a token: Authorization: Bearer …", headers=CHALLENGE)
        scheme, _, secret = authorization.partition(" ")
        secret = secret.strip()
        hashed, now_ms = hash_of(secret), self._clock.monotonic_ms()
        wait_s = self._logins.wait_s(address, hashed, now_ms=now_ms)
        if wait_s is not None:
            self._tell("too_many_failures", address)
            raise refuse("too_many_failures", headers={"retry-after": str(wait_s)})
        try:
            found = await self._found(secret if scheme.lower() == "bearer" else "", hashed)
        except BadToken as error:
            self._logins.failed(address, hashed, now_ms=now_ms)
            self._tell(str(error), address)
            challenge = {"www-authenticate": CHALLENGE["www-authenticate"] + ', error="invalid_token"'}
            raise refuse("unauthenticated", headers=challenge) from None
        self._logins.succeeded(address, hashed, now_ms=now_ms)
        return found

    async def _found(self, secret: str, hashed: str) -> Principal:
        if not secret:
            raise BadToken("no bearer token")
        if self._one_time_hash is not None and hmac.compare_digest(self._one_time_hash, hashed):
            return Principal(name=ONE_TIME_NAME, role=Role.ADMIN)
        try:
            token = None if self.tokens is None else self.tokens.find(secret)
        except (ConfigurationError, OSError):
            raise refuse("keys_unavailable") from None
        if token is not None:
            return Principal(name=token.name, role=token.role)
        if self._jwt is None or secret.startswith(PREFIX):
            raise BadToken("not known")
        name, role = await self._jwt.verify(secret)
        return Principal(name=name, role=role)

    def _tell(self, reason: str, address: str) -> None:
        self._events.emit("api.login_failed", reason=reason, address=address)


def guard_of(app: Redrive, *, host: str | None = None) -> tuple[Guard, str | None]:
    """The guard the settings ask for, and its one-time token where nothing is set and `host` is this machine only.

    Raises `ConfigurationError` where nothing is set and others could come: `host` elsewhere, or (None) unknown.
    """
    settings = app.settings
    tokens = TokenFile(Path(settings.admin_tokens))
    has_tokens = bool(tokens.tokens())
    jwt = None if settings.admin_jwt is None else JwtVerifier(settings.admin_jwt, app.clock)
    if has_tokens or jwt is not None:
        return Guard(app.clock, app.events, tokens=tokens, jwt=jwt), None
    if host is None or not is_loopback(host):
        raise ConfigurationError(
            f"The admin API would be open to others{'' if host is None else f' on {host}'}, and no token is made yet. "
            "Nothing was started.",
            hint=HOW + (" Without the API: --no-admin." if host is not None else ""),
        )
    secret = new_secret()
    return Guard(app.clock, app.events, tokens=tokens, one_time=secret), secret


def is_loopback(host: str) -> bool:
    """Whether only this machine can come."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
