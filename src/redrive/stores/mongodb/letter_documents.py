"""A letter as documents: the one of system A in `dead_letter_events`, and pieces of what is too large for it.

The fields of system A come first, for the team's other tools. Under `redrive` stands what redrive needs: fields to find
by, and the exact letter as bytes (its own JSON in ASCII, the body, the original body), which no server reads. What a
server may refuse, nested arrays, keys with "$" or ".", NUL, NaN, more than a document holds, never stands in a field of
its own: such a payload is its JSON text, with a flag.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import bson
from bson import Binary
from bson.errors import BSONError

from redrive.core.letters.letter import Attempt, Letter, ReviewState
from redrive.core.ports import LetterSummary
from redrive.core.text import clean, cut
from redrive.core.units import rfc3339
from redrive.core.wire import headers_from_json, headers_json, letter_document, letter_from_document
from redrive.stores.mongodb.link import Document

PIECE_BYTES: Final = 8 * 1024 * 1024
"""Most of the exact letter in one document: half of what a server holds, so that the rest has room."""
SNAPSHOT_BYTES: Final = 2 * 1024 * 1024
"""Most of a payload as a document."""
TEXT_BYTES: Final = 256 * 1024
"""Most of a payload as text; the exact message is kept beside it, whatever its size."""
MAX_DEPTH: Final = 50
MAX_HISTORY: Final = 1_000
"""Attempts shown; the exact letter has them all."""
_INT64: Final = 2**63

_SUMMARY_PLAIN: Final = (
    "attempt_count", "first_failed_at", "dead_lettered_at", "expires_at", "redrive_count",
)  # fmt: skip
_SUMMARY_TEXTS: Final = (
    "queue", "dead_letter_queue", "message_id", "key", "tenant", "message_type", "reason_code", "reason_text",
    "error_type", "error_code", "fingerprint", "group_title", "previous", "version",
)  # fmt: skip
_OWN: Final = ("id", "number", "life", "moves", "pieces", "body_bytes", "replays", "sent_closed")
SUMMARY_FIELDS: Final = {
    "reviewState": 1,
    **{f"redrive.{name}": 1 for name in (*_OWN, *_SUMMARY_PLAIN, *_SUMMARY_TEXTS)},
}
"""What a list reads: never the body, the history or the snapshot."""


def text_in(text: str) -> str:
    """Text as it is kept to be compared: ASCII, everything else escaped, so that equal is equal on every server."""
    return json.dumps(text)[1:-1]


def text_out(kept: str) -> str:
    """The text `text_in` was given."""
    return str(json.loads(f'"{kept}"')) if "\\" in kept else kept


def text_out_or_empty(kept: str | None) -> str:
    """The text, "" where there is none."""
    return "" if kept is None else text_out(kept)


def id_in(letter_id: str) -> str:
    """The `_id` of a letter; a name too long for an index is cut and made its own again by its digest."""
    kept = text_in(letter_id)
    return kept if len(kept) <= 200 else f"{kept[:100]}~{hashlib.sha256(kept.encode()).hexdigest()}"  # noqa: PLR2004


def documents_of(letter: Letter, *, number: int, life: str) -> tuple[Document, list[Document]]:
    """The letter's document, and the pieces of what is too large for it. `number`: its place among those that died in
    the same millisecond. `life` names this very copy: the same letter may be stored again once it was pruned.
    """
    message = letter.message
    bare = replace(letter, message=replace(message, body=b"", original=None), outstanding_job=None)
    parts = [json.dumps(letter_document(bare)).encode("ascii"), message.body, message.original or b""]
    exact = b"".join(parts)
    fields = _system_a(letter)
    own: Document = {
        "id": text_in(letter.id),
        "number": number,
        "life": life,
        "moves": 0,
        "replays": 0,
        "sent_closed": 0,
        "body_bytes": len(message.body),
        "headers": headers_json(message.headers),
        "lengths": [len(parts[0]), len(parts[1]), None if message.original is None else len(parts[2])],
        **_found_by(letter),
    }
    pieces: list[Document] = []
    if len(exact) <= PIECE_BYTES:
        own["exact"] = Binary(exact)
    else:
        starts = range(0, len(exact), PIECE_BYTES)
        pieces = [
            {"_id": piece_id(life, place), "exact": Binary(exact[start : start + PIECE_BYTES])}
            for place, start in enumerate(starts)
        ]
        own["pieces"] = len(pieces)
        own["headers"] = None
    return {"_id": id_in(letter.id), **fields, "redrive": own}, pieces


def without_snapshot(document: Document) -> Document:
    """The document for a server that refused it: its payload as ASCII text."""
    text = json.dumps(document["payloadSnapshot"], default=str)
    return {
        **document,
        **_as_text(text),
        "attemptHistory": [],
        "redrive": {**document["redrive"], "headers": None, "bare": True},
    }


def piece_id(life: str, place: int) -> str:
    """The id of one piece."""
    return f"{life}-{place}"


def letter_in(document: Document, pieces: Sequence[bytes], *, state: ReviewState, job: str | None) -> Letter:
    """The exact letter, in this state and held by this job."""
    own = document["redrive"]
    exact = b"".join(pieces) if pieces else bytes(own["exact"])
    head, body, original = own["lengths"]
    letter = letter_from_document(json.loads(exact[:head]))
    message = replace(
        letter.message,
        body=exact[head : head + body],
        original=None if original is None else exact[head + body : head + body + original],
    )
    return replace(letter, message=message, state=state, outstanding_job=job)


def summary_in(document: Document, *, job: str | None) -> LetterSummary:
    """What a list shows."""
    own = document["redrive"]
    texts: dict[str, Any] = {name: None if own[name] is None else text_out(own[name]) for name in _SUMMARY_TEXTS}
    return LetterSummary(
        id=text_out(own["id"]),
        state=ReviewState(document["reviewState"]),
        outstanding_job=job,
        body_bytes=own["body_bytes"],
        **texts,
        **{name: own[name] for name in _SUMMARY_PLAIN},
    )


def headers_in(document: Document) -> Any:
    """The headers, to be filtered by."""
    return headers_from_json(document["redrive"].get("headers"))


def _found_by(letter: Letter) -> Document:
    message = letter.message
    texts = {
        "message_id": message.id,
        "key": message.key,
        "tenant": message.tenant,
        "message_type": message.properties.type,
        "reason_code": letter.reason.code,
        "reason_text": letter.reason.text,
    }
    named = {name: texts[name] if name in texts else getattr(letter, name) for name in _SUMMARY_TEXTS}
    return {
        **{name: None if text is None else text_in(text) for name, text in named.items()},
        **{name: getattr(letter, name) for name in _SUMMARY_PLAIN},
    }


# ------------------------------------------------------------------------------------------- the fields of system A


def _system_a(letter: Letter) -> Document:
    """*Source*: systems.md A, Dead letter."""
    message = letter.message
    fields = _fields(message.original_body)
    own_key = message.key if message.key != message.id else None
    key, trace = _text(fields, "idempotencyKey") or own_key, _text(fields, "traceId") or message.properties.trace_id
    return {
        "letterId": cut(letter.id),
        "eventId": _shown(_text(fields, "eventId")),
        "idempotencyKey": _shown(key),
        "traceId": _shown(trace),
        "attemptCount": letter.attempt_count,
        "terminalReasonCode": cut(letter.reason.code),
        "terminalReasonMessage": cut(letter.reason.text),
        "attemptHistory": [_history_entry(entry) for entry in letter.history[-MAX_HISTORY:]],
        **_snapshot(fields.get("payload")),
        "deadLetteredAt": rfc3339(letter.dead_lettered_at),
        "reviewState": str(letter.state),
    }


def _history_entry(entry: Attempt) -> Document:
    """A start that never ended is a failed attempt too; its code says what became of the worker."""
    return {
        "attempt": entry.attempt,
        "outcome": "failed",
        "errorCode": cut(entry.error_code or entry.outcome.value.upper()),
        "at": rfc3339(entry.at),
        "durationMs": entry.duration_ms,
    }


def _snapshot(payload: Any) -> Document:
    if is_plain(payload):
        try:
            if len(bson.encode({"p": payload})) <= SNAPSHOT_BYTES:
                return {"payloadSnapshot": payload}
        except (BSONError, ValueError, OverflowError, RecursionError):
            pass
    try:
        return _as_text(json.dumps(payload, ensure_ascii=False))
    except RecursionError:
        return _as_text("")


def _as_text(text: str) -> Document:
    shown = cut(text, TEXT_BYTES)
    is_cut = {} if shown == clean(text) else {"payloadSnapshotIsCut": True}
    return {"payloadSnapshot": shown, "payloadSnapshotIsText": True, **is_cut}


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether every server keeps this value as a field of a document."""
    match value:
        case None | bool():
            return True
        case int():
            return -_INT64 <= value < _INT64
        case float():
            return math.isfinite(value)
        case str():
            return clean(value) == value
        case list():
            items = depth < MAX_DEPTH and not any(isinstance(each, list) for each in value)
            return items and all(is_plain(each, depth + 1) for each in value)
        case dict():
            names = depth < MAX_DEPTH and all(_is_name(name) for name in value)
            return names and all(is_plain(each, depth + 1) for each in value.values())
        case _:
            return False


def _is_name(name: str) -> bool:
    return bool(name) and "$" not in name and "." not in name and clean(name) == name


def _fields(body: bytes) -> Document:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(fields: Document, name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None


def _shown(text: str | None) -> str | None:
    return None if text is None else cut(text)
