"""The steps of the pipeline: from a command to events, each in the transaction of its own message.

A step does its work on files first (writing one twice is writing it once), then says so: its event and the end of its
message are one commit. The id of an event comes from the message that caused it, so a repeat is the same event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from redrive import Delivery

from .files import Rejected, Storage, check, kind_of, text_of, thumbnail_of

EVENTS: Final = "domain.events"
Step = Callable[["FileEvent", Delivery], None]


class FileEvent(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A command or an event about one file."""

    file_id: str
    name: str
    kind: str = ""
    size_bytes: int = 0
    facts: dict[str, Any] = {}
    reason: str = ""


class Unreadable(Exception):
    """The file was validated and cannot be read now: the volume, not the file."""


def accept(storage: Storage) -> Step:
    """`commands.upload.*` and `commands.file.reprocess.*`: the file enters the pipeline, again if need be."""

    def handle(command: FileEvent, delivery: Delivery) -> None:
        size = len(storage.read(command.file_id))
        kind = kind_of(command.name)
        event = msgspec.structs.replace(command, kind=kind, size_bytes=size)
        with delivery.transaction() as tx:
            say(tx, f"files.uploaded.{kind}", event, cause=delivery)

    return handle


def validate(storage: Storage) -> Step:
    """`files.uploaded.*`: looks at the bytes. Content that is not what its name says is rejected, once and for all."""

    def handle(event: FileEvent, delivery: Delivery) -> None:
        content = storage.read(event.file_id)
        try:
            facts = check(event.kind, content)
        except Rejected as rejected:
            answer, key = msgspec.structs.replace(event, reason=str(rejected)), f"files.rejected.{event.kind}"
        else:
            answer, key = msgspec.structs.replace(event, facts=facts), f"files.validated.{event.kind}"
        with delivery.transaction() as tx:
            say(tx, key, answer, cause=delivery)

    return handle


def thumbnail(storage: Storage) -> Step:
    """`files.validated.*`: a small picture of a picture."""

    def handle(event: FileEvent, delivery: Delivery) -> None:
        if event.kind == "image":
            storage.put_beside(event.file_id, ".thumb.png", _made(thumbnail_of, storage.read(event.file_id)))
        with delivery.transaction() as tx:
            say(tx, f"processing.thumbnail.{'done' if event.kind == 'image' else 'skipped'}", event, cause=delivery)

    return handle


def extract(storage: Storage) -> Step:
    """`files.validated.*`: the text of a PDF or a text file, beside it."""

    def handle(event: FileEvent, delivery: Delivery) -> None:
        has_text = event.kind in {"pdf", "text"}
        if has_text:
            text = _made(lambda content: text_of(event.kind, content), storage.read(event.file_id))
            storage.put_beside(event.file_id, ".extracted.txt", text.encode())
            event.facts["words"] = len(text.split())
        with delivery.transaction() as tx:
            say(tx, f"processing.text.{'done' if has_text else 'skipped'}", event, cause=delivery)

    return handle


def _made(make: Callable[[bytes], Any], content: bytes) -> Any:
    try:
        return make(content)
    except Rejected as error:
        raise Unreadable(f"validated, and now: {error}") from error


def say(tx: Any, key: str, event: FileEvent, *, cause: Delivery) -> None:
    """Publish an event with this transaction, under the correlation id of what caused it."""
    tx.publish(
        key,
        event,
        exchange=EVENTS,
        type=key,
        message_id=hashlib.sha256(f"{cause.message.id}:{key}".encode()).hexdigest()[:32],
        correlation_id=cause.message.properties.correlation_id or cause.message.id,
    )
