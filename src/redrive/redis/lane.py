"""Lane: one way to the server that takes writes, kept open: connects, and connects again when that is lost.

Who takes writes: with sentinels, whom they name; else the first of the hosts that is no replica. A connection whose
server has become a replica (a failover) is given up by whoever is told `READONLY`, and the lane looks again.

Reconnecting: a random wait of up to 0.1 s, 0.2 s, 0.4 s, … 2 s, so that a crowd does not come back in one instant. It
starts again at 0.1 s only after a connection has stood for `STABLE_MS`: a server that accepts and drops is not
hammered.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from typing import Any, Final

from redrive.core.policy.backoff import Exponential
from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.errors import RedriveError
from redrive.redis.address import Address
from redrive.redis.failures import BY_ITSELF, LinkLost, Refusal, connect_refusal, refused, unavailable
from redrive.redis.link import Link, connect

STABLE_MS: Final[Millis] = 5_000
RECONNECT: Final = Exponential("100ms", factor=2, cap="2s", jitter="full")


class Lane:
    """Keeps one `Link` open. All methods belong to one event loop. `node`: only this one, not the address's hosts."""

    def __init__(self, address: Address, *, clock: Clock, node: tuple[str, int] | None = None) -> None:
        self._address = address
        self._clock = clock
        self._node = node
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._up: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[None] | None = None
        self._failures = 0
        self._error: BaseException | None = None
        self._is_closed = False
        self.epoch = 0
        """How often a connection was made."""

    @property
    def link(self) -> Link | None:
        """The link that stands now."""
        return None if self._link is None or self._link.is_lost else self._link

    @property
    def where(self) -> str:
        """For messages."""
        return self._address.where if self._node is None else f"{self._node[0]}:{self._node[1]}"

    async def start(self) -> Link:
        """Connect, for the first time. Raises `ConfigurationError` where trying again would change nothing, else
        `BrokerUnavailableError` once every host was tried.
        """
        if self.link is None:
            try:
                self._take(await find(self._address, self._node))
            except (LinkLost, Refusal, ssl.SSLError) as error:
                self._error = error
                raise self.why_down(hint=self._first_hint()) from error
            self._keeper = asyncio.create_task(self._keep())
        assert self._link is not None
        return self._link

    async def get(self, *, wait_ms: float) -> Link:
        """The link, waiting for a reconnect. Raises what `why_down` says after `wait_ms`."""
        link = self.link
        if link is not None:
            return link
        if self._is_closed:
            raise unavailable(self.where, "the app has closed the connection")
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        if self._up is None:
            self._up = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._up], timeout=max(0.0, wait_ms) / 1_000)
        link = self.link
        if link is None:
            raise self.why_down()
        return link

    def _first_hint(self) -> str:
        """Where the first connection fails nobody tries again."""
        tls = ", and does it speak TLS at that port" if self._address.tls is not None else ""
        return f"Is it running, and is the address right{tls}?"

    def why_down(self, *, hint: str = BY_ITSELF) -> RedriveError:
        """The error for a call that found no connection."""
        error = self._error
        refusal = None if error is None else connect_refusal(error, self.where, is_tls=self._address.tls is not None)
        if refusal is not None:
            return refusal
        if isinstance(error, Refusal):
            return refused(self.where, error)
        return unavailable(self.where, "it does not answer" if error is None else str(error), hint=hint)

    async def close(self) -> None:
        """Disconnect, for good. May be called twice."""
        self._is_closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._link is not None:
            self._link.close()

    def _take(self, link: Link) -> None:
        self._link = link
        self.epoch += 1
        self._error = None
        lost = asyncio.get_running_loop().create_future()
        self._lost = lost
        link.on_lost = lambda: None if lost.done() else lost.set_result(None)
        if link.is_lost:
            link.on_lost()
        if self._up is not None and not self._up.done():
            self._up.set_result(None)
        self._up = None

    async def _keep(self) -> None:
        while not self._is_closed:
            if self._lost is not None:
                stood_from = self._clock.monotonic_ms()
                await self._lost
                if self._clock.monotonic_ms() - stood_from >= STABLE_MS:
                    self._failures = 0
                self._lost = None
            if self._failures:
                delay_ms: Any = RECONNECT.delay_ms(self._failures, random.random())  # noqa: S311 - a wait, no secret
                await asyncio.sleep(delay_ms / 1_000)
            self._failures += 1
            try:
                self._take(await find(self._address, self._node))
            except (LinkLost, Refusal, ssl.SSLError) as error:
                self._error = error


async def find(address: Address, node: tuple[str, int] | None = None) -> Link:
    """A link to the server that takes writes. Raises the last host's `LinkLost`, `Refusal` or `ssl.SSLError`."""
    if node is None and address.sentinel is not None:
        node = await _ask_sentinels(address, address.sentinel)
    failed: BaseException = LinkLost("no host is known", was_sent=False)
    for host, port in address.hosts if node is None else (node,):
        try:
            return await connect(host, port, address)
        except (LinkLost, Refusal, ssl.SSLError) as error:
            failed = error
    raise failed


async def _ask_sentinels(address: Address, master: str) -> tuple[str, int]:
    failed: BaseException = LinkLost("no sentinel is known", was_sent=False)
    for host, port in address.hosts:
        try:
            sentinel = await connect(host, port, address, is_sentinel=True)
            try:
                found = await sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", master)
            finally:
                sentinel.close()
        except (LinkLost, Refusal, ssl.SSLError) as error:
            failed = error
            continue
        if found:
            return found[0].decode(), int(found[1])
        failed = LinkLost(f'the sentinel {host}:{port} knows no master "{master}"', was_sent=False)
    raise failed
