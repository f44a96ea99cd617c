"""Gateway: an ASGI app that takes signed webhooks and enqueues them durably before it answers.

Authoritative is the broker: a `202` is sent only after `publish(once=True)` has returned, so the message and the
record of its key are durable together. Failure by failure:

- killed before the publish: the sender gets no answer and repeats; it is enqueued then.
- killed between the publish and the answer: the sender repeats; the key is on record, so nothing is enqueued a second
  time and the answer is `202` with `duplicate: true`.
- the broker is away, or slower than `enqueue_timeout`: `503` with Retry-After. In the second case the message may
  still get in; the sender's repeat finds its key.
- the client leaves: before its body is complete nothing happened; after that the work is finished unseen.

Checks, in this order: size 413, known source 404, rate 429, signature and time 401, body 400,
fields 422, then enqueue 409 and 503. Around them stand what is not a check of one webhook: another path is 404,
another method 405, a body that does not arrive in time 408, more than `max_in_flight` requests at once 503 before any
work is done. A body with a Content-Encoding other than `identity` is 415, before the signature: signatures hold for
bytes as received, and what would be enqueued is not the JSON the sender means.

Weak spot: rates are counted in each process by itself; N gateway processes let through N times the rate.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import secrets as randomness
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from redrive.core.policy.flow import Bucket, Rate, RateSpec, full_bucket, parse_rate, take, wait_ms
from redrive.core.ports import Published
from redrive.core.units import Duration, duration_ms
from redrive.errors import ConfigurationError, InvalidMessageError, RedriveError
from redrive.ingest.intake import (
    REQUEST_ID_HEADER,
    Disconnected,
    Receive,
    Scope,
    Send,
    read_body,
    source_in,
    too_large,
    trace_id_of,
)
from redrive.ingest.problems import PROBLEM_MEDIA_TYPE, Problem, Refused
from redrive.ingest.schemes import TimestampedHmac
from redrive.ingest.signatures import RawHeaders, Refusal, Scheme, Verified, header_values
from redrive.ingest.sources import Source, Sources, SourcesReader, as_sources
from redrive.ingest.webhook import Build, Envelope, InvalidBody, InvalidField, Webhook, body_digest, raw_message
from redrive.runtime.app import Redrive

_LOG: Final = logging.getLogger(__name__)

DEFAULT_MAX_BODY_BYTES: Final = 1024 * 1024
DEFAULT_RATE: Final = Rate(count=1_000, per_ms=1_000)
"""Requests per source."""
DEFAULT_TOLERANCE: Final = "300s"
DEFAULT_MAX_IN_FLIGHT: Final = 1_000
RETRY_AFTER_S: Final = 5
"""What a 503 asks the sender to wait."""
REREAD_SOURCES_MS: Final = 1_000
"""At most so often a `SourcesReader` is asked again."""


@dataclass(slots=True, kw_only=True)
class _Lane:
    """One source, ready to be checked against."""

    name: str
    source: Source
    scheme: Scheme
    keys: tuple[bytes, ...] = field(repr=False)
    build: Build
    bucket: Bucket


@dataclass(slots=True, kw_only=True)
class _Request:
    """One request on its way. `source` is set once it is known, so that logs never carry a stranger's text."""

    path_source: str | None
    method: str
    headers: RawHeaders
    trace_id: str
    source: str | None = None
    publishing: asyncio.Task[Published] | None = None


class Gateway:
    """`POST /{source}` into `queue`. Mount it: `app.mount("/webhooks", gateway)`, or in Starlette and FastAPI alike.

    `sources`: names with their secrets, or a `SourcesReader` such as `SecretsFile`. `scheme` and `build` hold for
    sources that have none of their own. `tolerance`: how far a signed time may lie from now. `rate`: per source
    and process, "1000/s" or a number per second, with a burst of one second's worth.

    Raises `ConfigurationError` where a source, secret or limit is wrong.
    """

    def __init__(
        self,
        app: Redrive,
        queue: str,
        *,
        sources: Sources | SourcesReader,
        scheme: Scheme | None = None,
        build: Build | None = None,
        tolerance: Duration = DEFAULT_TOLERANCE,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        rate: RateSpec = DEFAULT_RATE,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        body_timeout: Duration = "10s",
        enqueue_timeout: Duration = "10s",
    ) -> None:
        for name, limit in (("max_body_bytes", max_body_bytes), ("max_in_flight", max_in_flight)):
            if limit < 1:
                raise ConfigurationError(f"{name} is {limit}: it must be at least 1.")
        self._app = app
        self._queue = queue
        self._scheme = TimestampedHmac() if scheme is None else scheme
        self._build = raw_message() if build is None else build
        self._tolerance_ms = duration_ms(tolerance, field="tolerance")
        self._max_body_bytes = max_body_bytes
        self._rate = parse_rate(rate)
        self._max_in_flight = max_in_flight
        self._body_timeout_s = duration_ms(body_timeout, field="body_timeout") / 1_000
        self._enqueue_timeout_s = duration_ms(enqueue_timeout, field="enqueue_timeout") / 1_000
        self._in_flight = 0
        self._is_told_closed = False
        self._reader: Callable[[], Sources] | None = sources if callable(sources) else None
        self._read_at_ms = app.clock.monotonic_ms()
        self._sources: Sources = sources() if callable(sources) else sources
        self._lanes = self._lanes_for(self._sources)

    @property
    def sources(self) -> tuple[str, ...]:
        """The known sources by name, sorted."""
        return tuple(sorted(self._lanes))

    def replace_sources(self, sources: Sources) -> None:
        """From the next request on, these sources and secrets hold. Raises `ConfigurationError`, changing nothing."""
        self._lanes = self._lanes_for(sources)
        self._sources = sources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    # ------------------------------------------------------------------------------------------ one request

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
        request = _Request(
            path_source=source_in(scope),
            method=scope["method"],
            headers=headers,
            trace_id=trace_id_of(headers, otherwise=f"req_{randomness.token_hex(8)}"),
        )
        self._in_flight += 1
        try:
            answer = await self._checked(request, receive)
        except Refused as refused:
            await self._refuse(request, send, refused.problem)
        except Disconnected:
            return
        except Exception:
            # A bug, ours or the build function's: the sender gets a document, the server's log the traceback.
            detail = "The gateway failed on this request. Nothing was enqueued; send it again later."
            await self._refuse(request, send, Problem(status=500, code="internal_error", detail=detail))
            raise
        else:
            await _send(send, request, status=202, body=answer)
        finally:
            self._let_go(request)

    async def _checked(self, request: _Request, receive: Receive) -> bytes:
        """All checks in their order, then the message is durable: the body of the 202."""
        self._check_route(request)
        body = await read_body(
            receive, headers=request.headers, limit=self._max_body_bytes, timeout_s=self._body_timeout_s
        )
        lane = self._known_lane(request)
        self._check_rate(lane)
        _check_encoding(request.headers)
        webhook = self._verified(request, lane, body)
        envelope = _built(lane, webhook)
        published = await self._enqueued(request, webhook, envelope)
        self._app.events.emit(
            "ingest.accepted",
            source=lane.name,
            key=envelope.key,
            trace_id=request.trace_id,
            duplicate=published.duplicate,
            secret_index=webhook.verified.secret_index,
            body_bytes=len(body),
        )
        answer = {
            "eventId": envelope.event_id,
            "idempotencyKey": envelope.key,
            "traceId": request.trace_id,
            "duplicate": published.duplicate,
        }
        return json.dumps(answer, ensure_ascii=False).encode()

    def _check_route(self, request: _Request) -> None:
        if request.path_source is None:
            raise Refused(Problem(status=404, code="not_found", detail="Webhooks go to one path segment: the source."))
        if request.method != "POST":
            detail = "Webhooks are sent with POST."
            raise Refused(Problem(status=405, code="method_not_allowed", detail=detail, headers=(("allow", "POST"),)))
        if self._in_flight > self._max_in_flight:
            detail = "Too many requests are in flight. Nothing was enqueued; send it again."
            raise Refused(Problem(status=503, code="overloaded", detail=detail, retry_after_s=RETRY_AFTER_S))

    def _known_lane(self, request: _Request) -> _Lane:
        self._reread_sources()
        lane = self._lanes.get(str(request.path_source))
        if lane is None:
            detail = "No such source here. A source is known once it has a secret in the gateway's configuration."
            raise Refused(Problem(status=404, code="unknown_source", detail=detail))
        request.source = lane.name
        return lane

    def _check_rate(self, lane: _Lane) -> None:
        now_ms = int(self._app.clock.monotonic_ms())
        lane.bucket, granted = take(lane.bucket, 1, now_ms)
        if not granted:
            detail = "This source sends faster than its rate allows. Nothing was enqueued; send it again."
            retry_after_s = max(1, math.ceil(wait_ms(lane.bucket, now_ms) / 1_000))
            raise Refused(Problem(status=429, code="rate_limited", detail=detail, retry_after_s=retry_after_s))

    def _verified(self, request: _Request, lane: _Lane, body: bytes) -> Webhook:
        now = self._app.clock.now()
        verdict = lane.scheme.verify(request.headers, body, keys=lane.keys, now=now, tolerance_ms=self._tolerance_ms)
        if isinstance(verdict, Refusal):
            raise Refused(Problem(status=401, code=verdict.value, detail=_WHY_NOT[verdict]))
        assert isinstance(verdict, Verified)
        types = header_values(request.headers, "content-type")
        return Webhook(
            source=lane.name,
            body=body,
            headers=request.headers,
            content_type=types[0].decode("latin-1") if types else None,
            trace_id=request.trace_id,
            received_at=now,
            scheme=lane.scheme.name,
            verified=verdict,
        )

    async def _enqueued(self, request: _Request, webhook: Webhook, envelope: Envelope) -> Published:
        publishing = asyncio.ensure_future(self._publish(request, webhook, envelope))
        request.publishing = publishing
        # Not cancelled when it is late: half a publish cannot be taken back, and its outcome must not be guessed.
        await asyncio.wait({publishing}, timeout=self._enqueue_timeout_s)
        if not publishing.done():
            raise Refused(_unavailable("The message was not confirmed durable in time."))
        try:
            published = publishing.result()
        except InvalidMessageError:
            raise Refused(too_large(self._max_body_bytes)) from None
        except ConfigurationError as error:
            self._tell_closed(error)
            raise Refused(_unavailable("The gateway is not open yet.")) from error
        except RedriveError as error:
            raise Refused(_unavailable(f"The broker cannot take messages now ({error.code}).")) from error
        if published.conflict:
            raise Refused(self._conflict(request, webhook, envelope))
        return published

    async def _publish(self, request: _Request, webhook: Webhook, envelope: Envelope) -> Published:
        return await self._app.publish(
            self._queue,
            envelope.body,
            idempotency_key=envelope.key,
            message_id=message_id(self._queue, envelope.key),
            content_type=envelope.content_type,
            type=envelope.type,
            tenant=envelope.tenant,
            headers=envelope.headers,
            trace_id=request.trace_id,
            once=True,
            digest=body_digest(webhook.body),
        )

    def _tell_closed(self, error: ConfigurationError) -> None:
        """Once: to whoever mounted the gateway and did not open the app, nothing else would say so."""
        if not self._is_told_closed:
            self._is_told_closed = True
            _LOG.warning("%s", error)

    def _conflict(self, request: _Request, webhook: Webhook, envelope: Envelope) -> Problem:
        self._app.events.emit("ingest.conflict", source=webhook.source, key=envelope.key, trace_id=request.trace_id)
        detail = "This key was accepted before with another body. Nothing was enqueued; the first body stands."
        return Problem(status=409, code="key_conflict", detail=detail, extra={"idempotencyKey": envelope.key})

    async def _refuse(self, request: _Request, send: Send, problem: Problem) -> None:
        self._app.events.emit(
            "ingest.refused",
            source=request.source,
            status=problem.status,
            error_code=problem.code,
            trace_id=request.trace_id,
        )
        headers = list(problem.headers)
        if problem.retry_after_s is not None:
            headers.append(("retry-after", str(problem.retry_after_s)))
        body = b"" if request.method == "HEAD" else problem.document(trace_id=request.trace_id)
        await _send(send, request, status=problem.status, body=body, media_type=PROBLEM_MEDIA_TYPE, headers=headers)

    def _let_go(self, request: _Request) -> None:
        """Free the request's place; a publish that is still under way keeps it until it ends."""
        if request.publishing is None or request.publishing.done():
            self._in_flight -= 1
        else:
            request.publishing.add_done_callback(self._ended_late)

    def _ended_late(self, publishing: asyncio.Task[Published]) -> None:
        self._in_flight -= 1
        if not publishing.cancelled():
            publishing.exception()  # looked at, so that the loop does not report it as forgotten

    # ------------------------------------------------------------------------------------------ sources

    def _reread_sources(self) -> None:
        now_ms = self._app.clock.monotonic_ms()
        if self._reader is None or now_ms - self._read_at_ms < REREAD_SOURCES_MS:
            return
        self._read_at_ms = now_ms
        try:
            sources = self._reader()
            if sources != self._sources:
                self.replace_sources(sources)
                self._app.events.emit("ingest.sources_changed", sources=list(self.sources))
        except ConfigurationError as error:
            self._app.events.emit("ingest.sources_refused", error_text=str(error))

    def _lanes_for(self, sources: Sources) -> dict[str, _Lane]:
        before = getattr(self, "_lanes", {})
        return {name: self._lane(name, source, before.get(name)) for name, source in as_sources(sources).items()}

    def _lane(self, name: str, source: Source, before: _Lane | None) -> _Lane:
        scheme = self._scheme if source.scheme is None else source.scheme
        rate = self._rate if source.rate is None else parse_rate(source.rate, field=f"rate of source {name}")
        bucket = full_bucket(rate, int(self._app.clock.monotonic_ms()))
        if before is not None and before.bucket.rate == rate:
            # A rotation of secrets must not hand a sender a fresh burst.
            bucket = before.bucket
        return _Lane(
            name=name,
            source=source,
            scheme=scheme,
            keys=tuple(scheme.key(secret) for secret in source.secrets),
            build=self._build if source.build is None else source.build,
            bucket=bucket,
        )

    # ------------------------------------------------------------------------------------------ standing alone

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Served by itself, the gateway opens and closes its app; mounted, the outer app's lifespan does."""
        await receive()
        try:
            await self._app.open()
        except RedriveError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._app.close()
        await send({"type": "lifespan.shutdown.complete"})


def message_id(queue: str, key: str) -> str:
    """The id a webhook's message gets: a hash of queue and key, so that enqueuing it again is the same message."""
    digest = hashlib.sha256(f"{len(queue)}:{queue}{key}".encode("utf-8", "surrogatepass"))
    return f"wh_{digest.hexdigest()[:32]}"


_WHY_NOT: Final = {
    Refusal.SIGNATURE_MISSING: "The signature header is missing.",
    Refusal.SIGNATURE_REPEATED: "A header the signature depends on is there more than once.",
    Refusal.SIGNATURE_UNREADABLE: "A header the signature depends on cannot be read.",
    Refusal.SIGNATURE_MISMATCH: "The signature fits none of this source's secrets and these bytes.",
    Refusal.TIMESTAMP_MISSING: "The signed time is missing.",
    Refusal.TIMESTAMP_UNREADABLE: "The signed time must be unix seconds: digits, nothing else.",
    Refusal.TIMESTAMP_OUTSIDE_TOLERANCE: "The signed time is too far from now.",
}


def _check_encoding(headers: RawHeaders) -> None:
    for value in header_values(headers, "content-encoding"):
        if value.strip().lower() not in {b"", b"identity"}:
            detail = "A body with a Content-Encoding is not taken: send the bytes that were signed."
            raise Refused(
                Problem(
                    status=415, code="unsupported_encoding", detail=detail, headers=(("accept-encoding", "identity"),)
                )
            )


def _built(lane: _Lane, webhook: Webhook) -> Envelope:
    try:
        return lane.build(webhook)
    except InvalidBody as invalid:
        raise Refused(Problem(status=400, code="invalid_body", detail=str(invalid))) from None
    except InvalidField as invalid:
        extra = {"field": invalid.field}
        raise Refused(Problem(status=422, code="invalid_field", detail=invalid.text, extra=extra)) from None


def _unavailable(text: str) -> Problem:
    detail = f"{text} Send it again: a repeat of the same event is never enqueued twice."
    return Problem(status=503, code="broker_unavailable", detail=detail, retry_after_s=RETRY_AFTER_S)


async def _send(
    send: Send,
    request: _Request,
    *,
    status: int,
    body: bytes,
    media_type: str = "application/json",
    headers: list[tuple[str, str]] | None = None,
) -> None:
    fields = [
        ("content-type", media_type),
        ("content-length", str(len(body))),
        (REQUEST_ID_HEADER, request.trace_id),
        *(headers or []),
    ]
    encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in fields]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
