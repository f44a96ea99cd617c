"""The HTTP client of a push consumer: kept connections, one limit on time, and no address that is not allowed.

aiohttp is the client because of its cost: measured beside httpx with 50 requests at once, a request takes 90 to 140 µs
of Python instead of 2 500 (docs/decisions/011-http-client.md).

Every new connection looks the name up again and connects to an address that was checked, not to the name: between the
check and the connection nothing is looked up a second time, so a name that changes its address (DNS rebinding) gains
nothing. Proxies and netrc of the environment are not used, cookies not kept, redirects not followed.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from redrive.core.units import Millis
from redrive.push.addresses import refusal_of
from redrive.push.target import Target

KEEPALIVE_S: Final = 4.0
"""Shorter than common servers keep an idle connection (5 s): who closes first cannot be caught sending."""

MAX_DRAIN_BYTES: Final = 65_536
"""An answer up to this length is read to its end, so that its connection can be used again; a longer one is cut off."""

USER_AGENT: Final = "redrive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the service answered. `body`: its first bytes, as many as are kept."""

    status: int
    reason: str
    retry_after: str | None
    body: bytes

    @property
    def text(self) -> str:
        """The status line and the kept part of the body, for the history of the message."""
        line = f"HTTP {self.status} {self.reason}".strip()
        said = self.body.decode("utf-8", "replace").strip()
        return f"{line}: {said}" if said else line


class TargetRefusedError(OSError):
    """The name of the service resolves to addresses only that are not pushed to. Nothing was sent."""


class PushClient:
    """Posts to one target. Made anywhere; its connections belong to the loop of the first `post`."""

    def __init__(
        self, target: Target, *, connections: int, timeout_ms: Millis, keep_bytes: int, allow_private: bool
    ) -> None:
        self._target = target
        self._connections = connections
        self._timeout = aiohttp.ClientTimeout(total=timeout_ms / 1_000)
        self._keep_bytes = keep_bytes
        self._allow_private = allow_private
        self._opened: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, headers: dict[str, str]) -> Answer:
        """Send the bytes as they are; the answer, whatever its status.

        Raises aiohttp's errors, `OSError` and `TimeoutError` where there is none: whether the service has seen the
        message is not known then.
        """
        target = self._target
        if target.authorization is not None:
            headers["authorization"] = target.authorization
        async with self._session().post(target.url, data=body, headers=headers, allow_redirects=False) as response:
            try:
                kept = await self._read(response)
            except (aiohttp.ClientError, OSError, TimeoutError):
                kept = b""  # the status decides, and it is here
            return Answer(
                status=response.status,
                reason=response.reason or "",
                retry_after=response.headers.get("retry-after"),
                body=kept,
            )

    async def close(self) -> None:
        """Close every connection; a later `post` opens new ones."""
        session, self._opened = self._opened, None
        if session is not None:
            await session.close()

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        kept, length = b"", 0
        async for chunk in response.content.iter_any():
            kept += chunk[: self._keep_bytes - len(kept)]
            length += len(chunk)
            if length > MAX_DRAIN_BYTES:
                response.close()
                break
        return kept

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            resolver: AbstractResolver = aiohttp.ThreadedResolver()
            connector = aiohttp.TCPConnector(
                limit=self._connections,
                resolver=resolver if self._allow_private else PublicResolver(resolver),
                use_dns_cache=False,
                keepalive_timeout=KEEPALIVE_S,
            )
            self._opened = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                headers={"user-agent": USER_AGENT, "accept-encoding": "identity"},
            )
        return self._opened


class PublicResolver(AbstractResolver):
    """Finds addresses of the public internet only."""

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises `TargetRefusedError` where every address is refused."""
        found = await self._inner.resolve(host, port, family)
        allowed = [each for each in found if refusal_of(each["host"]) is None]
        if not allowed:
            whys = sorted({why for each in found if (why := refusal_of(each["host"]))})
            raise TargetRefusedError(f'"{host}" resolves to {" and ".join(whys) or "nothing"}.')
        return allowed

    async def close(self) -> None:
        """Nothing is kept."""
        await self._inner.close()


def refused(error: BaseException) -> TargetRefusedError | None:
    """The refusal behind an error of the client, if that is what it was."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, TargetRefusedError):
        seen = seen.__cause__ or seen.__context__
    return seen


CLIENT_ERRORS: Final = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
"""What `post` raises where there is no answer."""
