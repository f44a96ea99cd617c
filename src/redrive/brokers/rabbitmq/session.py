"""A connection for one errand of a person: look, declare, move, and close.

Unlike a worker's connection it does not come back by itself. Where it breaks, the errand ends with
`BrokerUnavailableError`; errands are made so that they can be run again.

One call is made at a time on a `Channel`, publishes aside: they are sent one after the other and confirmed together.
A channel the broker closes (404, 406) takes nothing else with it: `ChannelClosed` says why, and the connection goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from redrive.core.in_place import HEADER_ITEM
from redrive.errors import BrokerUnavailableError, ConfigurationError, RedriveError

OPEN_TIMEOUT_S: Final = 20.0
CALL_TIMEOUT_S: Final = 120.0
"""No answer for so long: the connection is given up. A delete of a queue with millions of messages takes some time."""

NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406
ACCESS_REFUSED: Final = 403
RESOURCE_LOCKED: Final = 405


class ChannelClosed(RedriveError):
    """The broker refused something and closed the channel; what was not acknowledged on it lies in its queue again."""

    code = "channel_closed"

    def __init__(self, text: str, *, hint: str = "", reply_code: int = 0) -> None:
        super().__init__(text, hint=hint)
        self.reply_code = reply_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """A message taken with `get`, as it is on the wire. `tag` is good on its channel only."""

    tag: int
    exchange: str
    routing_key: str
    is_redelivered: bool
    left: int
    properties: Any
    body: bytes

    @property
    def headers(self) -> Mapping[str, Any]:
        """Empty where there are none."""
        return self.properties.headers or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a passive declare tells of a queue: messages ready, and consumers."""

    ready: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """One copy to publish. `item` is also in its headers."""

    item: str
    exchange: str
    routing_key: str
    properties: Any
    body: bytes


@dataclass(slots=True)
class _Confirms:
    """Publishes of one channel that are not confirmed yet, by delivery tag; and what came back."""

    next_tag: int = 1
    open: dict[int, tuple[str, asyncio.Future[bool]]] = field(default_factory=dict)
    returned: dict[str, str] = field(default_factory=dict)


class Channel:
    """See the module."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._confirms = _Confirms()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._why: RedriveError | None = None
        channel.add_on_close_callback(self._on_close)
        channel.add_on_return_callback(self._on_return)
        channel.add_on_cancel_callback(lambda _: None)
        channel.add_callback(self._on_empty, [pika.spec.Basic.GetEmpty], one_shot=False)
        self._getting: asyncio.Future[Got | None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        """False once either side has closed it."""
        return bool(self._channel.is_open)

    async def close(self) -> None:
        """Close it, and wait until the broker has: then everything not acknowledged lies in its queue again."""
        if not self._channel.is_open:
            return
        gone = asyncio.get_running_loop().create_future()
        self._channel.add_on_close_callback(lambda *_: _set(gone, None))
        self._channel.close()
        await asyncio.wait_for(gone, CALL_TIMEOUT_S)

    # ------------------------------------------------------------------------------------------ queues, exchanges

    async def counts(self, queue: str) -> Counts:
        """Raises `ChannelClosed` (404) where there is no such queue, and closes the channel then."""
        frame = await self._call(lambda done: self._channel.queue_declare(queue, passive=True, callback=done))
        return Counts(ready=frame.method.message_count, consumers=frame.method.consumer_count)

    async def declare_queue(self, name: str, *, durable: bool, auto_delete: bool, arguments: Mapping[str, Any]) -> None:
        """Raises `ChannelClosed` (406) where it is there with other arguments."""
        await self._call(
            lambda done: self._channel.queue_declare(
                name, durable=durable, auto_delete=auto_delete, arguments=dict(arguments), callback=done
            )
        )

    async def has_exchange(self, name: str) -> None:
        """Raises `ChannelClosed` (404) where there is none."""
        await self._call(lambda done: self._channel.exchange_declare(name, passive=True, callback=done))

    async def declare_exchange(self, name: str, kind: str, **options: Any) -> None:
        """`options`: durable, auto_delete, internal, arguments. An unknown type takes the connection with it (503)."""
        await self._call(lambda done: self._channel.exchange_declare(name, kind, callback=done, **options))

    async def bind(self, binding: Any, *, to_queue: bool) -> None:
        """A binding that is there already stays."""
        if to_queue:
            await self._call(
                lambda done: self._channel.queue_bind(
                    binding.destination, binding.source, binding.routing_key, dict(binding.arguments), callback=done
                )
            )
            return
        await self._call(
            lambda done: self._channel.exchange_bind(
                binding.destination, binding.source, binding.routing_key, dict(binding.arguments), callback=done
            )
        )

    async def unbind(self, binding: Any, *, to_queue: bool) -> None:
        """One that is gone already is no error."""
        if to_queue:
            await self._call(
                lambda done: self._channel.queue_unbind(
                    binding.destination, binding.source, binding.routing_key, dict(binding.arguments), callback=done
                )
            )
            return
        await self._call(
            lambda done: self._channel.exchange_unbind(
                destination=binding.destination,
                source=binding.source,
                routing_key=binding.routing_key,
                arguments=dict(binding.arguments),
                callback=done,
            )
        )

    async def delete_queue(self, name: str, *, if_empty: bool) -> None:
        """`if_empty`: only without messages and consumers, else `ChannelClosed` (406); classic queues only."""
        await self._call(
            lambda done: self._channel.queue_delete(name, if_unused=if_empty, if_empty=if_empty, callback=done)
        )

    # ------------------------------------------------------------------------------------------ messages

    async def get(self, queue: str) -> Got | None:
        """The next ready message, not acknowledged; None where there is none."""
        self._check()
        future: asyncio.Future[Got | None] = asyncio.get_running_loop().create_future()
        self._getting = future
        self._channel.basic_get(queue, self._on_got)
        found = await self._until(future)
        assert found is None or isinstance(found, Got)
        return found

    def ack(self, tags: Sequence[int]) -> None:
        """Sent, not answered; `sync` comes back when the broker has read them."""
        self._check()
        for tag in tags:
            self._channel.basic_ack(tag)

    async def sync(self) -> None:
        """Returns when the broker has carried out what was sent on this channel before."""
        await self._call(lambda done: self._channel.basic_qos(prefetch_count=0, callback=done))

    async def confirm_mode(self) -> None:
        """From now on publishes are confirmed."""
        await self._call(lambda done: self._channel.confirm_delivery(self._on_confirm, callback=done))

    async def publish(self, batch: Sequence[Sending]) -> list[str | None]:
        """Mandatory, and back when the broker has answered for all. None: it lies in a queue; else why not.

        Raises `ChannelClosed` or `BrokerUnavailableError` where the answer does not come: each may lie in a queue then.
        """
        self._check()
        futures = [self._send(each) for each in batch]
        answers = [await self._until(future) for future in futures]
        found: list[str | None] = []
        for each, is_kept in zip(batch, answers, strict=True):
            why = self._confirms.returned.pop(each.item, None)
            found.append(why if why is not None else None if is_kept else "the queue refused it (it is full, or away)")
        return found

    def _send(self, each: Sending) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._confirms.open[self._confirms.next_tag] = (each.item, future)
        self._confirms.next_tag += 1
        self._channel.basic_publish(each.exchange, each.routing_key, each.body, each.properties, mandatory=True)
        return future

    # ------------------------------------------------------------------------------------------ callbacks

    async def _call(self, start: Callable[[Callable[[Any], None]], Any]) -> Any:
        self._check()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        start(lambda frame: _set(future, frame))
        return await self._until(future)

    async def _until(self, future: asyncio.Future[Any]) -> Any:
        if self._why is not None and not future.done():
            raise self._why
        self._waiting.add(future)
        try:
            return await asyncio.wait_for(future, CALL_TIMEOUT_S)
        except TimeoutError:
            text = f"The broker did not answer for {CALL_TIMEOUT_S:.0f} s."
            raise BrokerUnavailableError(text, hint="Run the command again when it does.") from None
        finally:
            self._waiting.discard(future)

    def _check(self) -> None:
        if self._why is not None:
            raise self._why
        if not self._channel.is_open:
            raise BrokerUnavailableError("The channel to the broker is closed.")

    def _on_got(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        got = Got(
            tag=method.delivery_tag,
            exchange=method.exchange,
            routing_key=method.routing_key,
            is_redelivered=method.redelivered,
            left=method.message_count,
            properties=properties,
            body=body,
        )
        self._end_get(got)

    def _on_empty(self, _: Any) -> None:
        self._end_get(None)

    def _end_get(self, got: Got | None) -> None:
        future, self._getting = self._getting, None
        if future is not None and not future.done():
            future.set_result(got)

    def _on_return(self, _: Any, method: Any, properties: Any, __: bytes) -> None:
        # Several are in flight; this header alone tells which one comes back.
        item = str((properties.headers or {}).get(HEADER_ITEM))
        self._confirms.returned[item] = f"no queue takes it ({method.reply_text})"

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        is_kept = isinstance(method, pika.spec.Basic.Ack)
        tags = [tag for tag in self._confirms.open if tag <= method.delivery_tag] if method.multiple else []
        for tag in tags or [method.delivery_tag]:
            _, future = self._confirms.open.pop(tag, ("", None))
            if future is not None and not future.done():
                future.set_result(is_kept)

    def _on_close(self, _: Any, reason: Exception) -> None:
        self._why = _as_error(reason)
        futures = [*self._waiting, *(future for _, future in self._confirms.open.values())]
        if self._getting is not None:
            futures.append(self._getting)
        for future in futures:
            if not future.done():
                future.set_exception(self._why)
                # Of several publishes in flight only the first is waited for when it breaks.
                future.exception()


def _set(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _as_error(reason: Exception) -> RedriveError:
    if isinstance(reason, ChannelClosedByBroker):
        hint = ""
        if reason.reply_code == ACCESS_REFUSED:
            hint = "Give the user configure, write and read on these names: rabbitmqctl set_permissions."
        return ChannelClosed(f"The broker refused it: {reason.reply_text}.", hint=hint, reply_code=reason.reply_code)
    if isinstance(reason, ConnectionClosedByBroker):
        return BrokerUnavailableError(f"The broker closed the connection: {reason.reply_text}.")
    return BrokerUnavailableError(f"The connection to the broker ended ({type(reason).__name__}).")


class Session:
    """One connection."""

    def __init__(self, connection: AsyncioConnection, *, user: str, vhost: str, frame_max: int) -> None:
        self._connection = connection
        self.user = user
        self.vhost = vhost
        self.frame_max = frame_max

    @classmethod
    async def open(cls, url: str) -> Session:
        """Raises `BrokerUnavailableError`; `ConfigurationError` for what is no URL and for a refused login."""
        parameters = connection_parameters(url)
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[AsyncioConnection] = loop.create_future()

        def failed(_: Any, error: Any) -> None:
            if not opened.done():
                opened.set_exception(_not_opened(error, parameters))

        connection = AsyncioConnection(
            parameters,
            on_open_callback=lambda made: _set(opened, made),
            on_open_error_callback=failed,
            on_close_callback=lambda *_: None,
            custom_ioloop=loop,
        )
        try:
            await asyncio.wait_for(opened, OPEN_TIMEOUT_S)
        except TimeoutError:
            raise BrokerUnavailableError(f"{_place(parameters)} did not answer in {OPEN_TIMEOUT_S:.0f} s.") from None
        return cls(
            connection,
            user=parameters.credentials.username,
            vhost=parameters.virtual_host,
            frame_max=connection.params.frame_max or parameters.frame_max,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def version(self) -> str | None:
        """The broker's own word, at the start of the connection."""
        told = (self._connection.server_properties or {}).get("version")
        return told.decode() if isinstance(told, bytes) else told if isinstance(told, str) else None

    @property
    def is_open(self) -> bool:
        """False once it broke or was closed."""
        return bool(self._connection.is_open)

    async def channel(self, *, confirms: bool = False) -> Channel:
        """A channel of its own."""
        if not self._connection.is_open:
            raise BrokerUnavailableError("The connection to the broker has ended.")
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._connection.channel(on_open_callback=lambda made: _set(opened, made))
        channel = Channel(await asyncio.wait_for(opened, CALL_TIMEOUT_S))
        if confirms:
            await channel.confirm_mode()
        return channel

    async def close(self) -> None:
        """Close it and everything on it. Twice is fine."""
        if not self._connection.is_open:
            return
        gone = asyncio.get_running_loop().create_future()
        self._connection.add_on_close_callback(lambda *_: _set(gone, None))
        self._connection.close()
        await asyncio.wait_for(gone, CALL_TIMEOUT_S)


def connection_parameters(url: str) -> pika.URLParameters:
    """Raises `ConfigurationError` for what is no amqp URL; its text holds no credentials."""
    parts = urlsplit(url)
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        raise ConfigurationError("That is no AMQP URL.", hint="Write amqp://user:password@host:5672/vhost.")
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"The AMQP URL cannot be read ({type(error).__name__}).") from None
    parameters.blocked_connection_timeout = CALL_TIMEOUT_S
    return parameters


def _place(parameters: Any) -> str:
    return f"RabbitMQ at {parameters.host}:{parameters.port}"


def _not_opened(error: Any, parameters: Any) -> RedriveError:
    if isinstance(error, ProbableAuthenticationError):
        return ConfigurationError(f'{_place(parameters)} refused the user "{parameters.credentials.username}".')
    if isinstance(error, ProbableAccessDeniedError):
        return ConfigurationError(
            f'{_place(parameters)} refused the virtual host "{parameters.virtual_host}".',
            hint="It does not exist, or the user has no permission there.",
        )
    if isinstance(error, ConnectionClosedByBroker):
        return ConfigurationError(f"{_place(parameters)} refused the connection: {error.reply_text}.")
    what = type(error).__name__ if isinstance(error, AMQPError | OSError | Exception) else "no connection"
    return BrokerUnavailableError(f"{_place(parameters)} cannot be reached ({what}). Nothing was changed.")
