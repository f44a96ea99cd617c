"""Link: one connection to one RabbitMQ, and channels on it. Over pika's asyncio connection.

pika does what happens now and then: the handshake, TLS, heartbeats, channels and their methods. What happens for every
message is done here: frames of deliveries, returns and confirms are read from the bytes as they come and handed to the
channel's `Sink`, and frames are written many at a time (docs/decisions/010 has the measurements). For that
two methods of pika's connection are replaced (`_on_data_available`, `_proto_connection_made`) and three used
(`_process_frame`, `_output_marshaled_frames` and `_terminate_stream`); a test says so should a pika without them come.

A link is lost once, and never comes back: whoever holds it gets another from its `Lane`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from pika import exceptions, frame
from pika.adapters.asyncio_connection import AsyncioConnection

from redrive.brokers.rabbitmq import frames
from redrive.brokers.rabbitmq.failures import ChannelLost, LinkLost, channel_lost
from redrive.brokers.rabbitmq.pushed import Pushed, Returned
from redrive.core.topology.model import Binding, Exchange, Queue

RECEIVE_BYTES: Final = 256 * 1024
"""Most bytes of one read; pika's own 4 kB would make a message of 100 kB twenty-five reads."""

_head: Final = struct.Struct(">BHI").unpack_from
_u32: Final = struct.Struct(">I").unpack_from
_u64: Final = struct.Struct(">Q").unpack_from
_u16: Final = struct.Struct(">H").unpack_from
_MAX_ROUTES: Final = 1_000

_PIKA: Final = logging.getLogger("pika")
if _PIKA.level == logging.NOTSET:
    # It reports as errors, several lines each, what is told here as one event or raised. Who wants it sets a level.
    _PIKA.setLevel(logging.CRITICAL)


class Sink(Protocol):
    """Who takes what comes on one channel. Called from the loop, in the order of arrival."""

    def delivered(self, pushed: Pushed) -> None:
        """A delivery, or the answer to a get."""
        ...

    def returned(self, back: Returned) -> None:
        """A published message that no queue took."""
        ...

    def confirmed(self, tag: int, *, multiple: bool, is_taken: bool) -> None:
        """The broker has (or has not) what was published under this tag, or under all up to it."""
        ...


class _Stream:
    """What is being read on one channel: a method that has content, then its header, then its body."""

    __slots__ = ("body", "header", "left", "method", "sink")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.method: tuple[int, bytes, int, bool, tuple[str, str]] | None = None
        self.header = b""
        self.left = 0
        self.body: list[bytes] = []


class Link(AsyncioConnection):  # type: ignore[misc]
    """A connection whose frames per message are read and written here."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._streams: dict[int, _Stream] = {}
        self._unread = b""
        self._routes: dict[bytes, tuple[str, str]] = {}
        super().__init__(*arguments, **named)

    # ------------------------------------------------------------------------------------------- for channels

    @property
    def frame_max(self) -> int:
        """Most bytes of one frame, as agreed."""
        return int(self.params.frame_max)

    @property
    def version(self) -> str | None:
        """The broker's, as it says."""
        found = (self.server_properties or {}).get("version")
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    def write(self, data: bytes) -> None:
        """Send frames; nothing where the link is lost: whoever waits for an answer is told by its channel."""
        if data and self.is_open:
            self._output_marshaled_frames([data])

    def attach(self, number: int, sink: Sink) -> None:
        """What comes per message on this channel goes to `sink`."""
        self._streams[number] = _Stream(sink)

    def detach(self, number: int) -> None:
        """The channel is gone."""
        self._streams.pop(number, None)

    def cut(self) -> None:
        """End it without a word, as a lost network would."""
        if not self.is_closed:
            self._terminate_stream(exceptions.ConnectionClosedByClient(320, "given up"))

    # ------------------------------------------------------------------------------------------- reading

    def _proto_connection_made(self, transport: Any) -> None:
        transport._MAX_RECV_BYTES = RECEIVE_BYTES  # noqa: SLF001
        transport._MAX_CONSUME_BYTES = RECEIVE_BYTES  # noqa: SLF001
        super()._proto_connection_made(transport)

    def _on_data_available(self, data: bytes) -> None:
        self.bytes_received += len(data)
        unread = self._unread + data if self._unread else data
        at, end = 0, len(unread)
        while end - at >= frames.OVERHEAD:
            kind, number, size = _head(unread, at)
            stop = at + frames.OVERHEAD + size
            if stop > end and unread[at : at + 4] != b"AMQP":
                break
            stream = self._streams.get(number)
            if stream is not None and unread[stop - 1] != frames.FRAME_END:
                raise exceptions.InvalidFrameError("a frame does not end where it should")
            if stream is None or not self._read(stream, kind, unread[at + 7 : stop - 1]):
                used, value = frame.decode_frame(unread[at:stop])
                stop = at + used
                self._unread = b""
                self._process_frame(value)
            at = stop
        self._unread = unread[at:]

    def _read(self, stream: _Stream, kind: int, payload: bytes) -> bool:
        """False: a frame for pika."""
        if kind == frames.METHOD:
            return self._read_method(stream, payload)
        if stream.method is None:
            return False
        if kind == frames.HEADER:
            (stream.left,) = _u64(payload, 4)
            stream.header = payload[frames.CONTENT_PREFIX :]
            if not stream.left:
                self._finish(stream, b"")
        elif kind == frames.BODY:
            stream.left -= len(payload)
            if stream.left > 0 or stream.body:
                stream.body.append(payload)
            if stream.left <= 0:
                body = b"".join(stream.body) if stream.body else payload
                stream.body = []
                self._finish(stream, body)
        return True

    def _read_method(self, stream: _Stream, payload: bytes) -> bool:
        (method,) = _u32(payload, 0)
        if method == frames.DELIVER:
            at = 5 + payload[4]
            stream.method = (
                method,
                b"",
                _u64(payload, at)[0],
                payload[at + 8] & 1 == 1,
                self._route(payload[at + 9 :]),
            )
        elif method == frames.ACK:
            stream.sink.confirmed(_u64(payload, 4)[0], multiple=payload[12] & 1 == 1, is_taken=True)
        elif method == frames.NACK:
            stream.sink.confirmed(_u64(payload, 4)[0], multiple=payload[12] & 1 == 1, is_taken=False)
        elif method == frames.RETURN:
            end = 7 + payload[6]
            stream.method = (method, payload[7:end], _u16(payload, 4)[0], False, self._route(payload[end:]))
        else:
            return False
        return True

    def _route(self, pair: bytes) -> tuple[str, str]:
        """Exchange and routing key, of their two short strings."""
        found = self._routes.get(pair)
        if found is None:
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            split = 1 + pair[0]
            exchange, key = pair[1:split], pair[split + 1 : split + 1 + pair[split]]
            found = (exchange.decode("utf-8", "surrogateescape"), key.decode("utf-8", "surrogateescape"))
            self._routes[pair] = found
        return found

    def _finish(self, stream: _Stream, body: bytes) -> None:
        assert stream.method is not None
        method, text, number, redelivered, route = stream.method
        stream.method = None
        if method == frames.RETURN:
            stream.sink.returned(Returned(number, text.decode("utf-8", "replace"), route, stream.header))
        else:
            stream.sink.delivered(Pushed(number, redelivered, route, stream.header, body))


class Channel:
    """One channel: its rare methods as coroutines. Each raises `ChannelLost` or `LinkLost` where the answer will not
    come any more.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.is_open = False
        self._raw: Any = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._lost: Exception | None = None
        self.on_lost: Callable[[Exception], None] | None = None
        """Called once, when the channel is gone."""
        self.on_cancel: Callable[[], None] | None = None
        """Called when the broker stops to push by itself: the queue is gone, or has no leader."""

    @property
    def number(self) -> int:
        """The channel's."""
        return int(self._raw.channel_number)

    @property
    def lost(self) -> Exception | None:
        """Why it is gone; None while it is not."""
        return self._lost

    async def open(self, sink: Sink | None = None) -> Channel:
        """Open it; what comes per message goes to `sink`."""
        opened = self._promise()
        try:
            self._raw = self.link.channel(on_open_callback=lambda _: _fulfil(opened, None))
        except exceptions.AMQPError as error:
            self._waiting.discard(opened)
            raise LinkLost(str(error) or type(error).__name__) from error
        self._raw.add_on_close_callback(self._closed)
        self._raw.add_on_cancel_callback(self._cancelled)
        if sink is not None:
            self.link.attach(self.number, sink)
        await opened
        self.is_open = True
        return self

    async def close(self) -> None:
        """Close it; what was delivered and not settled goes back into its queue. May be called at any time."""
        self.is_open = False
        raw = self._raw
        if raw is None or self._lost is not None:
            return
        closed = self._promise()
        try:
            if raw.is_open or raw.is_opening:
                raw.close()
            await closed
        except (ChannelLost, LinkLost, exceptions.AMQPError):
            return
        finally:
            self._waiting.discard(closed)

    async def confirm(self) -> None:
        """Have the broker confirm what is published."""
        await self._call(self._raw.confirm_delivery, _ignore)

    async def qos(self, prefetch: int) -> None:
        """Limit what is pushed to the next consumer and not settled."""
        await self._call(self._raw.basic_qos, prefetch_count=prefetch)

    async def consume(self, queue: str, tag: str) -> None:
        """Have the broker push."""
        await self._call(self._raw.basic_consume, queue=queue, on_message_callback=_ignore, consumer_tag=tag)

    async def cancel(self, tag: str) -> None:
        """No more is pushed once this returns."""
        if tag not in self._raw.consumer_tags:
            # The broker has stopped it already, and would not answer.
            return
        await self._call(self._raw.basic_cancel, consumer_tag=tag)

    async def declare_queue(
        self,
        queue: str,
        *,
        passive: bool = False,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> tuple[int, int]:
        """How many messages are ready there and how many consumers it has."""
        answer = await self._call(
            self._raw.queue_declare,
            queue=queue,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments,
        )
        return answer.method.message_count, answer.method.consumer_count

    def send_exchange(self, exchange: Exchange) -> None:
        """Make the exchange. Nobody waits: a refusal closes the channel."""
        self._send(
            self._raw.exchange_declare,
            exchange=exchange.name,
            exchange_type=exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=dict(exchange.arguments),
        )

    def send_queue(self, queue: Queue) -> None:
        """Make the queue. As `send_exchange`."""
        self._send(
            self._raw.queue_declare,
            queue=queue.name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            arguments=dict(queue.arguments),
        )

    def send_binding(self, binding: Binding) -> None:
        """Bind. As `send_exchange`."""
        rest = {"routing_key": binding.routing_key, "arguments": dict(binding.arguments)}
        if binding.destination_type == "exchange":
            self._send(self._raw.exchange_bind, destination=binding.destination, source=binding.source, **rest)
        else:
            self._send(self._raw.queue_bind, queue=binding.destination, exchange=binding.source, **rest)

    def _send(self, method: Callable[..., Any], **named: Any) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            method(**named)
        except exceptions.AMQPError as error:
            raise self._why(error) from error

    async def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        answered = self._promise()
        try:
            method(*arguments, callback=lambda answer: _fulfil(answered, answer), **named)
        except exceptions.AMQPError as error:
            self._waiting.discard(answered)
            raise self._why(error) from error
        try:
            return await answered
        finally:
            self._waiting.discard(answered)

    def _why(self, error: Exception) -> Exception:
        """The client refuses to send: the channel went in between."""
        return self._lost or LinkLost(str(error) or type(error).__name__)

    def _promise(self) -> asyncio.Future[Any]:
        if self._lost is not None:
            raise self._lost
        promise: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(promise)
        return promise

    def _cancelled(self, method: Any) -> None:
        _ = method
        if self.on_cancel is not None:
            self.on_cancel()

    def _closed(self, raw: Any, reason: Exception) -> None:
        _ = raw
        self.is_open = False
        self.link.detach(self.number)
        self._lost = channel_lost(reason)
        for promise in self._waiting:
            if not promise.done():
                promise.set_exception(self._lost)
        self._waiting.clear()
        if self.on_lost is not None:
            self.on_lost(self._lost)


def _fulfil(promise: asyncio.Future[Any], answer: Any) -> None:
    if not promise.done():
        promise.set_result(answer)


def _ignore(*_: Any) -> None:
    """Pika wants a callback for what a sink takes."""
