"""A message as a BullMQ job, and a job as a message.

What a Node worker sees is `job.data`, so a body that is JSON is that field byte for byte: blanks, key order and numbers
of any size stay as they were sent, because nobody parses them on the way (Node's own reading of a huge number rounds
it, the stored text does not change). A body that is no JSON cannot stand there: Node's worker reads the field with
JSON.parse before any handler runs. So text is a JSON string there and other bytes are {"$bytes": base64}, and `rdk`
says which, so that the exact bytes come back. A third way, the bytes in a field of their own beside a substitute, was
left out: it doubles what waits in Redis, and a Node worker that updates the data would leave two truths.

Everything else of redrive is in fields of its own in the job's hash, which Node reads past:

    rd    what a message has and a job has not, as JSON: id, key, tenant, headers, properties, times (see `Meta`)
    rdk   kind of the body in `data`: absent or "j" JSON, "t" text, "b" bytes
    rdo   the first body, where a retry rewrote it: its kind, then what `data` was
    rdh   history of earlier starts, a JSON array
    rdl   when a worker of redrive gave it up: its letter is stored
    rdm   which publish made it: a publish whose answer was lost is not carried out twice
    rdt   group of its tenant, of those that have one, for queues whose turns are taken by tenant
    rdp   the priority it was sent with, where `priority` is its place among the turns

Not in the options: they pass through a JSON library of Lua there that rounds numbers and turns [] into {}.

How often it started: atm (failed, BullMQ counts them) + stc (lost, BullMQ's stall counter) + this one. A hand-back
counts in neither. So both worlds agree, whoever ran it before.

A job that redrive did not make has none of these fields, except rdt and rdp once it has its place, rdh and rdl. Its id
is the message's; its key is "id@timestamp", because BullMQ lets an id be used again once its job is gone, and counts
from 1 again in a queue that was obliterated: the id alone would take a new job for a duplicate of an old one. A
producer that wants more says so in the payload.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from redrive.brokers.bullmq.turns import group_fields
from redrive.core import wire
from redrive.core.letters.letter import Attempt
from redrive.core.message import NO_HEADERS, NO_PROPERTIES, Message, Properties
from redrive.core.units import UnixMs

META, KIND, ORIGINAL, HISTORY, GIVEN_UP = "rd", "rdk", "rdo", "rdh", "rdl"
JSON_BODY, TEXT_BODY, BYTES_BODY = "j", "t", "b"
JSON_TYPE: Final = "application/json"

MAX_STARTS: Final = 1_000_000
"""More than anybody has seen; a field that says so is not to be counted on."""
_INT64: Final = 2**63

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class Kept(NamedTuple):
    """What of a job is kept while it is in hand. `options` as stored."""

    id: str
    options: bytes


# ------------------------------------------------------------------------------------------------------- bodies


def stored_body(body: bytes) -> tuple[str, bytes]:
    """Kind and what goes into `data`."""
    if is_json(body):
        return JSON_BODY, body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return BYTES_BODY, b'{"$bytes":"' + base64.b64encode(body) + b'"}'
    return TEXT_BODY, json.dumps(text).encode()


def is_json(body: bytes) -> bool:
    """Whether Node's JSON.parse takes it."""
    try:
        _decode(body)
    except msgspec.DecodeError:
        return _is_json_in_detail(body)
    except (RecursionError, UnicodeDecodeError):
        return False
    return True


def _is_json_in_detail(body: bytes) -> bool:
    """For what the fast reader refuses and JSON allows: escaped halves of a pair, numbers without end."""
    if b"\\u" not in body and not any(character in body for character in b"0123456789"):
        return False
    try:
        json.loads(body.decode(), parse_constant=_refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(text: str) -> Any:
    raise ValueError(text)


def body_of(kind: str, data: bytes) -> bytes:
    """The exact body; where somebody else has put plain JSON into the field since, that."""
    if kind == JSON_BODY:
        return data
    try:
        found = json.loads(data)
        if kind == TEXT_BODY and isinstance(found, str):
            return found.encode()
        if kind == BYTES_BODY and isinstance(found, dict) and len(found) == 1:
            return base64.b64decode(found["$bytes"], validate=True)
    except (ValueError, KeyError, TypeError, binascii.Error):
        pass
    return data


# ---------------------------------------------------------------------------------------------------- messages


def fields_of(message: Message, job_id: str, kind: str) -> list[str | bytes]:
    """The fields of redrive, a flat list of names and values."""
    fields: list[str | bytes] = [META, _meta(message, job_id)]
    if message.tenant is not None:
        fields += group_fields(message.tenant)
    if kind != JSON_BODY:
        fields += [KIND, kind]
    if message.original is not None:
        original_kind, original = stored_body(message.original)
        fields += [ORIGINAL, original_kind.encode() + original]
    return fields


def _meta(message: Message, job_id: str) -> bytes:
    """Names: i id, k key (absent: the id), c content type, t tenant, a published at, x expires at, z priority 0, h
    headers, p properties.
    """
    given = (("c", message.content_type), ("t", message.tenant), ("x", message.expires_at))
    meta: dict[str, Any] = {name: value for name, value in given if value is not None}
    if message.id != job_id:
        meta["i"] = message.id
    if message.key != message.id:
        meta["k"] = message.key
    if message.published_at:
        meta["a"] = message.published_at
    if message.priority == 0:
        meta["z"] = 1
    if message.headers:
        meta["h"] = wire.tagged(dict(message.headers))
    properties = wire.properties_json(message.properties)
    if properties is not None:
        meta["p"] = json.loads(properties)
    try:
        return _encode(meta)
    except UnicodeEncodeError:
        # A lone half of a pair has no UTF-8; escaped it survives.
        return json.dumps(meta, separators=(",", ":")).encode()


def message_of(job_id: str, job: Mapping[bytes, bytes]) -> Message:
    """The message of this job."""
    raw = job.get(b"rd")
    kind = job.get(b"rdk", b"j").decode()
    body = body_of(kind, job.get(b"data", b""))
    if raw is None:
        return _message_of_node(job_id, job, body)
    meta = _read(raw)
    # What stands behind a ~ was added where the id was taken; ids that hold one themselves are in `i`.
    name = meta["i"] if "i" in meta else job_id.partition("~")[0]
    headers = meta.get("h")
    properties = meta.get("p")
    original = job.get(b"rdo")
    return Message(
        id=name,
        body=body,
        content_type=meta.get("c"),
        key=meta.get("k", name),
        tenant=meta.get("t"),
        priority=_priority(job) or (0 if "z" in meta else None),
        published_at=meta.get("a", 0),
        expires_at=meta.get("x"),
        headers=_headers(headers, raw) if headers else NO_HEADERS,
        properties=Properties(**properties) if properties else NO_PROPERTIES,
        original=None if original is None else body_of(original[:1].decode(), original[1:]),
    )


def _read(raw: bytes) -> dict[str, Any]:
    try:
        found = _decode(raw)
    except msgspec.DecodeError:
        found = json.loads(raw)
    return found if isinstance(found, dict) else {}


def _headers(headers: Any, raw: bytes) -> Any:
    return wire.untagged(headers) if b'"$' in raw else headers


def _message_of_node(job_id: str, job: Mapping[bytes, bytes], body: bytes) -> Message:
    timestamp = whole(job.get(b"timestamp"))
    name = job.get(b"name", b"").decode("utf-8", "replace")
    return Message(
        id=job_id,
        body=body,
        content_type=JSON_TYPE,
        key=f"{job_id}@{timestamp}",
        tenant=tenant.decode("utf-8", "replace") if (tenant := job.get(b"rdt")) else None,
        priority=_priority(job) or None,
        published_at=timestamp,
        properties=Properties(type=name) if name else NO_PROPERTIES,
    )


def _priority(job: Mapping[bytes, bytes]) -> int:
    return whole(job[b"rdp"] if b"rdp" in job else job.get(b"priority"))


def whole(value: bytes | None) -> int:
    """A field of a job as a whole number; 0 where it is none, or one that no store has room for."""
    try:
        number = int(value or 0)
    except ValueError:
        try:
            number = int(float(value or 0))
        except (ValueError, OverflowError):
            return 0
    return number if -_INT64 <= number < _INT64 else 0


def starts_of(job: Mapping[bytes, bytes]) -> int:
    """Starts of this job that were not handed back, the one in hand included."""
    return min(max(0, whole(job.get(b"atm")) + whole(job.get(b"stc"))), MAX_STARTS) + 1


def history_of(job: Mapping[bytes, bytes]) -> tuple[Attempt, ...]:
    """What earlier starts left behind."""
    kept = job.get(b"rdh")
    return wire.history_from_json(kept.decode()) if kept else ()


def entry_json(entry: Attempt) -> str:
    """A history entry as Lua appends it."""
    return json.dumps(wire.attempt_document(entry), separators=(",", ":"))


# ----------------------------------------------------------------------------------------------------- options


@lru_cache(maxsize=1_024)
def ending_of(options: bytes, *, is_failed: bool) -> tuple[int, tuple[tuple[str, int], ...]]:
    """`attempts`, and how many ended jobs are kept, as moveToFinished takes it, by the job's own options."""
    try:
        found = _decode(options)
    except msgspec.DecodeError:
        found = {}
    given = found if isinstance(found, dict) else {}
    attempts = given.get("attempts")
    remove = given.get("removeOnFail" if is_failed else "removeOnComplete")
    return attempts if isinstance(attempts, int) else 0, _keep(remove)


def _keep(remove: Any) -> tuple[tuple[str, int], ...]:
    """BullMQ: true removes at once, a number keeps so many, a table says count, age (s) and limit."""
    if isinstance(remove, dict):
        known = tuple((name, int(remove[name])) for name in ("count", "age", "limit") if _is_number(remove.get(name)))
        return known or (("count", -1),)
    if isinstance(remove, bool) or remove is None:
        return (("count", 0 if remove else -1),)
    return (("count", int(remove)),) if _is_number(remove) else (("count", -1),)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def timestamp_of(job: Mapping[bytes, bytes]) -> UnixMs:
    """When the job was added, by its producer's clock."""
    return whole(job.get(b"timestamp"))


def trace_json(trace: str) -> str:
    """The field `stacktrace` with this one trace."""
    return json.dumps([trace])


def keepable(text: str) -> str:
    """What UTF-8 can hold of it."""
    return text.encode("utf-8", "replace").decode()
