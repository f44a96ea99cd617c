"""Campaign: hostile messages and webhooks, generated. Nothing stops a consumer or the gateway; no byte is lost.

Every message that the broker took ends processed or dead, with exactly the bytes that were sent. Every request gets an
answer; what was answered with 202 is on the queue, byte by byte.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from campaign.stage import Stage
from campaign.strategies import QUEUES, Request, generated, hostile_message, hostile_request
from redrive import Redrive, RedriveError, Retry, Settings
from redrive.core.letters.selection import Selection
from redrive.core.ports import Outgoing
from redrive.ingest import Gateway, GitHub

SECRET: Final = "hostile-secret"  # noqa: S105 - signs made-up webhooks
PATIENCE_S: Final = 300
PUBLISH_BATCH: Final = 200
ANSWERS: Final = frozenset({202, 400, 401, 404, 405, 408, 409, 411, 413, 415, 422, 429})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many generated messages and requests."""

    messages: int
    webhooks: int


FULL: Final = Scale(messages=10_000, webhooks=10_000)
SMALL: Final = Scale(messages=400, webhooks=400)


def run(stage: Stage, scale: Scale) -> None:
    """Send them all through a real worker and the real gateway. Raises `CampaignError` where one had its way."""
    messages = generated(hostile_message(), scale.messages, stage.seed)
    named = [_named(each, number) for number, each in enumerate(messages)]
    asyncio.run(_messages(stage, named))
    asyncio.run(_webhooks(stage, generated(hostile_request(), scale.webhooks, stage.seed)))


# ---------------------------------------------------------------------------------------------------- messages

REPEATED_EVERY: Final = 50


def _named(outgoing: Outgoing, number: int) -> Outgoing:
    """With an id of its own, so that it can be followed to its end; only some keys repeat, for their copies wait."""
    key = outgoing.message.key
    if key is not None and number % REPEATED_EVERY:
        key = f"{key}{number}"
    return replace(outgoing, message=replace(outgoing.message, id=f"m-{number}", key=key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What a typed handler asks for."""

    name: str
    count: int


@dataclass(slots=True)
class Seen:
    """Ids of messages that a handler ran for, with the exact body it was handed."""

    bodies: dict[str, bytes] = field(default_factory=dict)


def consuming_app(stage: Stage, seen: Seen) -> Redrive:
    """An app with one consumer for each kind of payload."""
    app = Redrive("hostile", settings=Settings(broker=f"sqlite:///{stage.file}"))
    once = Retry(max_attempts=1)

    def note(delivery: Any) -> None:
        seen.bodies[delivery.message.id] = delivery.message.original_body

    @app.consumer("hostile.typed", retry=once)
    async def typed(_parcel: Parcel, delivery: Any) -> None:
        note(delivery)

    @app.consumer("hostile.dict", retry=once)
    async def plain(_value: dict[str, Any], delivery: Any) -> None:
        note(delivery)

    @app.consumer("hostile.text", retry=once)
    async def text(_value: str, delivery: Any) -> None:
        note(delivery)

    @app.consumer("hostile.bytes", retry=once)
    async def raw(_value: bytes, delivery: Any) -> None:
        note(delivery)

    @app.consumer("hostile.thread", retry=once)
    def thread(_value: Any, delivery: Any) -> None:
        note(delivery)

    return app


async def _messages(stage: Stage, batch: list[Outgoing]) -> None:
    seen = Seen()
    app = consuming_app(stage, seen)
    async with app:
        taken = await _publish(app, batch)
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await _until(stage, "every hostile message is settled", lambda: _is_empty(app), running=running)
        good = await app.publish("hostile.dict", {"still": "here"}, message_id="good")
        await _until(stage, "the consumer still consumes", lambda: _has(seen, "good"), running=running)
        worker.stop()
        await running
        del good
        await _check_messages(stage, app, taken=taken, seen=seen)


async def _publish(app: Redrive, batch: list[Outgoing]) -> list[Outgoing]:
    """Publish; what the app refuses to send is the producer's problem, and is not sent."""
    taken = []
    for start in range(0, len(batch), PUBLISH_BATCH):
        part = batch[start : start + PUBLISH_BATCH]
        try:
            await app.publish_outgoing(part)
            taken += part
        except RedriveError:
            for outgoing in part:
                try:
                    await app.publish_outgoing([outgoing])
                    taken.append(outgoing)
                except RedriveError:
                    continue
    return taken


async def _check_messages(stage: Stage, app: Redrive, *, taken: list[Outgoing], seen: Seen) -> None:
    dead = await _letters(app)
    stage.check(len(taken) > 0, "the broker took none of the messages")
    ends: Counter[str] = Counter()
    processed_keys = {(o.queue, o.message.key) for o in taken if o.message.id in seen.bodies}
    for outgoing in taken:
        message = outgoing.message
        if message.id in seen.bodies:
            stage.same(f"bytes handed to the handler of {message.id}", message.body, seen.bodies[message.id])
            ends["processed"] += 1
        elif message.id in dead:
            letter = dead[message.id]
            stage.same(f"bytes kept of {message.id}", message.body, letter.message.original_body)
            stage.check(bool(letter.reason.text.strip()), f"the letter of {message.id} has no reason text")
            ends[letter.reason.code] += 1
        else:
            known = (outgoing.queue, message.key) in processed_keys or message.key in _keys(dead)
            stage.check(known, f"{outgoing} is neither processed nor dead, and its key was never handled")
            ends["duplicate"] += 1
    stage.say(f"{len(taken)} hostile messages ended as {dict(ends.most_common())}")


def _keys(dead: dict[str, Any]) -> set[str | None]:
    return {letter.message.key for letter in dead.values()}


async def _letters(app: Redrive) -> dict[str, Any]:
    found: dict[str, Any] = {}
    cursor = None
    while True:
        page = await app.backend.letters.find(Selection(), limit=500, cursor=cursor)
        for summary in page.letters:
            pair = await app.backend.letters.get(summary.id)
            assert pair is not None
            found[pair[0].message.id] = pair[0]
        cursor = page.cursor
        if cursor is None:
            return found


async def _is_empty(app: Redrive) -> bool:
    depths = await app.backend.broker.depths()
    return all(depth.ready + depth.scheduled + depth.leased == 0 for depth in depths if depth.queue in QUEUES)


async def _has(seen: Seen, message_id: str) -> bool:
    return message_id in seen.bodies


async def _until(stage: Stage, what: str, holds: Callable[[], Any], *, running: asyncio.Task[None]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await holds():
        stage.check(not running.done(), f"the worker stopped: {running}")
        stage.check(time.monotonic() < deadline, f"still not: {what}")
        await asyncio.sleep(0.05)
    stage.say(what)


# ---------------------------------------------------------------------------------------------------- webhooks


async def _webhooks(stage: Stage, requests: list[Request]) -> None:
    app = Redrive("hostile", settings=Settings(broker=f"sqlite:///{stage.file}"))
    gateway = Gateway(app, "hostile.hooks", sources={"known": [SECRET]}, scheme=GitHub(), rate=1_000_000)
    answers: Counter[int | None] = Counter()
    accepted: set[bytes] = set()
    async with app:
        for request in requests:
            status = await _ask(gateway, request)
            answers[status] += 1
            if status == 202:
                accepted.add(request.body)
        queued = await app.backend.broker.peek("hostile.hooks", limit=len(requests) + 1)
    stage.same("accepted bodies that are not on the queue", set(), accepted - {message.body for message in queued})
    unexpected = {status for status in answers if status is not None and status not in ANSWERS}
    stage.same("answers that say something broke", set(), unexpected)
    stage.say(f"{len(requests)} hostile requests answered {dict(answers.most_common())}, {len(queued)} enqueued")


async def _ask(gateway: Gateway, request: Request) -> int | None:
    """The status the gateway answers with; None where the client left first and there was nobody to answer."""
    headers = list(request.headers)
    if request.is_signed:
        digest = hmac.new(SECRET.encode(), request.body, hashlib.sha256).hexdigest()
        headers = [pair for pair in headers if pair[0] not in (b"x-hub-signature-256", b"content-length")]
        headers.append((b"x-hub-signature-256", f"sha256={digest}".encode()))
    arriving = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in request.chunks]
    arriving.append({"type": "http.disconnect"} if request.leaves else {"type": "http.request", "body": b""})
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return arriving.pop(0) if arriving else {"type": "http.disconnect"}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "raw_path": request.path.encode("utf-8", "surrogatepass"),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    await gateway(scope, receive, send)
    return next((event["status"] for event in sent if event["type"] == "http.response.start"), None)
