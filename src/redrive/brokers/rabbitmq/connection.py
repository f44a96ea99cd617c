"""Lane: one way to the broker, kept open: connects to one of the hosts, and connects again when that is lost.

An adapter has two: what is published goes by the one, deliveries and everything else by the other. A broker that runs
short of memory stops to read from connections that publish, and what has been handled must still be acknowledged then.

Reconnecting: a random wait of up to 1 s, 2 s, 4 s, … 30 s (so that a crowd does not come back in one instant), hosts in
a random order. The wait starts again at 1 s only after a connection has stood for `STABLE_MS`: a broker that accepts
and drops is not hammered.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pika

from redrive.brokers.rabbitmq.address import Address
from redrive.brokers.rabbitmq.failures import AT_START, BY_ITSELF, LinkLost, refusal, said, unavailable
from redrive.brokers.rabbitmq.link import Link
from redrive.core.policy.backoff import Exponential
from redrive.core.ports import Clock
from redrive.core.text import cut
from redrive.core.units import Millis
from redrive.errors import RedriveError

STABLE_MS: Final[Millis] = 10_000
RECONNECT: Final = Exponential("1s", factor=2, cap="30s", jitter="full")
CLOSE_S: Final = 5.0
"""How long a farewell may take; then the connection is cut."""
ABANDON_S: Final = 1.0
"""How long the client may take to close the socket of a connection that was given up while it was made."""
_MAX_REASON_BYTES: Final = 200
_MAX_WRAPPED: Final = 10


class Lane:
    """Keeps one `Link` open. All methods belong to one event loop."""

    def __init__(self, address: Address, *, clock: Clock, purpose: str) -> None:
        self._address = address
        self._clock = clock
        self._purpose = purpose
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._lost: asyncio.Future[None] | None = None
        self._failures = 0
        self._last_error: BaseException | None = None
        self._is_closed = False
        self.blocked: str | None = None
        """Why the broker reads nothing more from this connection; None while it does."""
        self.on_up: Callable[[Link], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self.on_unblocked: Callable[[], None] | None = None

    @property
    def link(self) -> Link | None:
        """The link that stands now."""
        return self._link

    @property
    def where(self) -> str:
        """For messages."""
        return self._address.where

    @property
    def vhost(self) -> str:
        """The virtual host."""
        return self._address.vhost

    async def start(self) -> Link:
        """Connect, for the first time. Raises `ConfigurationError` where trying again would change nothing, else
        `BrokerUnavailableError` once every host was tried.
        """
        if self._link is not None:
            return self._link
        if self._keeper is not None:
            return await self.get(wait_ms=self._address.connect_timeout_ms)
        try:
            link, lost = await self._connect()
        except LinkLost as error:
            raise self._error(hint=AT_START) from error
        self._take(link, lost)
        self._keeper = asyncio.create_task(self._keep())
        return link

    async def get(self, *, wait_ms: float) -> Link:
        """The link, waiting for a reconnect. Raises `BrokerUnavailableError` after `wait_ms`."""
        if self._link is not None:
            return self._link
        if self._is_closed:
            raise unavailable(self.where, "the app has closed the connection")
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        up = asyncio.get_running_loop().create_future()
        self._waiting.add(up)
        try:
            await asyncio.wait_for(up, max(0.0, wait_ms) / 1_000)
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(up)
        link = self.link
        if link is None:
            raise self._error(or_wait=True)
        return link

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[Link]:
        """Another link, for a question that may cost it. Raises `LinkLost`."""
        link, lost = await self._connect()
        try:
            yield link
        finally:
            await self._say_goodbye(link, lost)

    async def close(self) -> None:
        """Say goodbye, and connect no more."""
        self._is_closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None and self._lost is not None:
            await self._say_goodbye(link, self._lost)

    async def _say_goodbye(self, link: Link, lost: asyncio.Future[None]) -> None:
        if link.is_open:
            link.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(lost), CLOSE_S)
        link.cut()

    # ------------------------------------------------------------------------------------------- keeping it

    async def _keep(self) -> None:
        while True:
            while self._link is None:
                self._failures += 1
                if self._failures > 1 or self._lost is not None:
                    await self._clock.sleep(RECONNECT.delay_ms(max(1, self._failures - 1), random.random()))  # noqa: S311
                try:
                    self._take(*await self._connect())
                except LinkLost:
                    continue
            assert self._lost is not None
            since = self._clock.monotonic_ms()
            await asyncio.shield(self._lost)
            if self._clock.monotonic_ms() - since >= STABLE_MS:
                self._failures = 0

    def _take(self, link: Link, lost: asyncio.Future[None]) -> None:
        self._link, self._lost = link, lost
        self._last_error = None
        self.blocked = None
        for up in self._waiting:
            if not up.done():
                up.set_result(None)
        if self.on_up is not None:
            self.on_up(link)

    def _dropped(self, link: Link, reason: BaseException, lost: asyncio.Future[None]) -> None:
        self._last_error = reason
        self.blocked = None
        if self._link is link:
            self._link = None
            if self.on_lost is not None:
                self.on_lost()
        if not lost.done():
            lost.set_result(None)

    def _error(self, *, or_wait: bool = False, hint: str = BY_ITSELF) -> RedriveError:
        refused = None if or_wait else refusal(self._last_error, self.where, is_tls=self._address.tls is not None)
        if refused is not None:
            return refused
        text = "no answer yet" if self._last_error is None else said(self._last_error)
        return unavailable(self.where, text, hint=hint)

    # ------------------------------------------------------------------------------------------- connecting

    async def _connect(self) -> tuple[Link, asyncio.Future[None]]:
        """A link to one of the hosts, and what is done when it is lost. Raises `LinkLost` with the last reason."""
        hosts = list(self._address.hosts)
        random.shuffle(hosts)
        for host, port in hosts:
            try:
                return await self._connect_to(host, port)
            except LinkLost:
                if (host, port) == hosts[-1]:
                    raise
        raise AssertionError("an address has a host")

    async def _connect_to(self, host: str, port: int) -> tuple[Link, asyncio.Future[None]]:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        lost: asyncio.Future[None] = loop.create_future()

        def failed(_: object, reason: BaseException) -> None:
            if not opened.done():
                opened.set_exception(LinkLost(said(reason)))
                self._last_error = _innermost(reason)
            lost.set_result(None)

        link = Link(
            self._parameters(host, port),
            on_open_callback=lambda _: None if opened.done() else opened.set_result(None),
            on_open_error_callback=failed,
            on_close_callback=lambda link, reason: self._dropped(link, reason, lost),
            custom_ioloop=loop,
        )
        try:
            await asyncio.wait_for(opened, self._address.connect_timeout_ms / 1_000)
        except (TimeoutError, asyncio.CancelledError) as error:
            _abandon(link)
            await asyncio.wait({lost}, timeout=ABANDON_S)
            if isinstance(error, TimeoutError):
                self._last_error = TimeoutError(f"no answer within {self._address.connect_timeout_ms} ms")
                raise LinkLost(str(self._last_error)) from error
            raise
        link.add_on_connection_blocked_callback(self._blocked)
        link.add_on_connection_unblocked_callback(self._unblocked)
        return link, lost

    def _parameters(self, host: str, port: int) -> Any:
        address = self._address
        seconds = address.connect_timeout_ms / 1_000
        tls = None if address.tls is None else pika.SSLOptions(address.tls, address.server_name or host)
        return pika.ConnectionParameters(
            host=host,
            port=port,
            virtual_host=address.vhost,
            credentials=pika.PlainCredentials(address.user, address.password, erase_on_connect=False),
            heartbeat=address.heartbeat_s,
            socket_timeout=seconds,
            stack_timeout=seconds,
            connection_attempts=1,
            ssl_options=tls,
            client_properties={"connection_name": f"redrive {self._purpose} on {socket.gethostname()}"},
        )

    def _blocked(self, link: object, method: Any) -> None:
        if link is self._link:
            reason = method.method.reason
            self.blocked = cut(reason if isinstance(reason, str) else "no reason given", _MAX_REASON_BYTES)

    def _unblocked(self, link: object, method: Any) -> None:
        _ = method
        if link is self._link:
            self.blocked = None
            if self.on_unblocked is not None:
                self.on_unblocked()


def _abandon(link: Link) -> None:
    """Let go of a link that is still being opened."""
    with contextlib.suppress(pika.exceptions.AMQPError):
        if not (link.is_closed or link.is_closing):
            link.close()


def _innermost(reason: BaseException) -> BaseException:
    """The reason the client has wrapped: an unanswered port, a refused password."""
    return list(_chain(reason))[-1]


def _chain(reason: BaseException) -> Iterator[BaseException]:
    for _ in range(_MAX_WRAPPED):
        yield reason
        wrapped = [each for each in reason.args if isinstance(each, BaseException)]
        wrapped += getattr(reason, "exceptions", ())
        wrapped += [each for each in (getattr(reason, "exception", None),) if each is not None]
        if not wrapped:
            return
        reason = wrapped[-1]
