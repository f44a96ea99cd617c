"""Headers, messages, letters, and what a redrive job is made of, as JSON and back, every kind kept exactly.

JSON has fewer kinds than a header table. What it lacks is an object with one key that starts with "$":
{"$bytes": base64}, {"$time": RFC 3339}, {"$decimal": "12.34"}, {"$float": "nan"}, {"$int": "9007199254740993"} (above
2**53, where other readers of JSON would round). A user's own key that starts with "$" gets one "$" more. Text is
written as ASCII with escapes, so NUL and lone surrogates survive any store. Instants of redrive itself are integer
milliseconds. The same form is stored, exported and printed by `--json`.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

from redrive.core.letters.letter import Attempt, AttemptOutcome, Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import NO_HEADERS, NO_PROPERTIES, Headers, HeaderValue, Message, Properties
from redrive.core.redrive import JobOptions
from redrive.core.refusals import RefusalCode
from redrive.core.settlement import Reason
from redrive.errors import InvalidMessageError, SchemaTooNewError

Document: TypeAlias = "dict[str, Any]"
"""A JSON object: what `json.dumps` accepts without a default."""

SCHEMA: Final = 1
"""Version of the documents; a reader refuses a higher one."""

MAX_HEADER_DEPTH: Final = 32
"""Most levels of lists and tables in a header; deeper is an attack on readers that recurse."""

_EXACT_INT: Final = 2**53
_DECIMAL_BITS: Final = 4_096
_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode

# ------------------------------------------------------------------------------------------------ tagged values


def tagged(value: Any, *, depth: int = 0) -> Any:
    """A header value as plain JSON kinds. Raises `InvalidMessageError` on a kind no header holds."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value) if abs(value) <= _EXACT_INT else {"$int": _int_text(value)}
        case float():
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        case bytes() | bytearray() | memoryview():
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        case Decimal():
            return {"$decimal": str(value)}
        case datetime():
            return {"$time": _time_text(value)}
        case _:
            return _tagged_container(value, depth)


def _tagged_container(value: Any, depth: int) -> Any:
    if depth >= MAX_HEADER_DEPTH:
        raise InvalidMessageError(f"A header is nested deeper than {MAX_HEADER_DEPTH} levels. Nothing was sent.")
    if isinstance(value, list | tuple):
        return [tagged(item, depth=depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {_escaped(key): tagged(item, depth=depth + 1) for key, item in value.items()}
    raise InvalidMessageError(f"A header holds a {type(value).__name__}, which no broker can carry. Not sent.")


def untagged(value: Any) -> Any:
    """The header value that `tagged` wrote. Raises `InvalidMessageError` on a tag it does not know."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key.startswith("$") and not key.startswith("$$"):
            return _from_tag(key, inner)
    return {_unescaped(key): untagged(item) for key, item in value.items()}


def _from_tag(tag: str, text: Any) -> Any:
    try:
        return _FROM_TAG[tag](text)
    except (KeyError, ValueError, TypeError, InvalidOperation, binascii.Error) as error:
        raise InvalidMessageError(f"{tag} with {text!r:.60} is not a value this redrive knows.") from error


_FROM_TAG: Final[dict[str, Any]] = {
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$time": datetime.fromisoformat,
    "$decimal": Decimal,
    "$float": float,
    "$int": lambda text: int(text, 0),
}


def _int_text(value: int) -> str:
    # Python refuses to write more than some thousand decimal digits (a guard against slow conversion); hex has none.
    return str(int(value)) if value.bit_length() <= _DECIMAL_BITS else hex(value)


def _time_text(value: datetime) -> str:
    text = value.isoformat()
    return text[:-6] + "Z" if text.endswith("+00:00") else text


def _escaped(key: Any) -> str:
    if not isinstance(key, str):
        raise InvalidMessageError(f"A header table has the key {key!r:.60}, which is not text. Not sent.")
    return f"${key}" if key.startswith("$") else key


def _unescaped(key: str) -> str:
    return key[1:] if key.startswith("$$") else key


# ------------------------------------------------------------------------------------------- headers, properties


def headers_json(headers: Headers | None) -> str | None:
    """Headers as JSON text (ASCII), None where there are none. Raises `InvalidMessageError` as `tagged` does."""
    return _encode(tagged(dict(headers))) if headers else None


def headers_from_json(text: str | None) -> Headers:
    """The headers `headers_json` wrote, equal in value and kind."""
    if not text:
        return NO_HEADERS
    loaded: dict[str, HeaderValue] = json.loads(text)
    # Only a tag or an escaped key puts "$ into the text; without one the plain JSON is the value already.
    return {_unescaped(key): untagged(item) for key, item in loaded.items()} if '"$' in text else loaded


def check_headers(headers: Mapping[Any, Any] | None) -> Headers:
    """The headers, if every broker can carry them.

    Raises `InvalidMessageError` naming the header: a name that is not text or empty, a kind no table holds, an
    integer over 64 bits, a time without an offset, a table nested too deep. Nothing was sent.
    """
    if not headers:
        return NO_HEADERS
    for name, value in headers.items():
        if not isinstance(name, str) or not name:
            raise InvalidMessageError(f"Header name {name!r:.60} is not text. The message was not sent.")
        problem = _problem(value, 0)
        if problem is not None:
            raise InvalidMessageError(f"Header {name!r:.120} {problem}. The message was not sent.")
    return headers


def _problem(value: Any, depth: int) -> str | None:
    match value:
        case None | bool() | float() | str() | bytes() | Decimal():
            return None
        case int():
            return None if -(2**63) <= value < 2**63 else "is an integer over 64 bits"
        case datetime():
            return "is a time without an offset" if value.utcoffset() is None else None
        case list() | dict() if depth >= MAX_HEADER_DEPTH:
            return f"is nested deeper than {MAX_HEADER_DEPTH} levels"
        case list():
            return next((found for item in value if (found := _problem(item, depth + 1))), None)
        case dict():
            if not all(isinstance(key, str) for key in value):
                return "holds a table with a key that is not text"
            return next((found for item in value.values() if (found := _problem(item, depth + 1))), None)
        case _:
            return f"holds a {type(value).__name__}, which no broker can carry"


_PROPERTY_NAMES: Final = tuple(field.name for field in fields(Properties))


def properties_json(properties: Properties) -> str | None:
    """The properties that are set, as JSON text; None where none is."""
    return None if properties is NO_PROPERTIES or properties == NO_PROPERTIES else _encode(_properties(properties))


def properties_from_json(text: str | None) -> Properties:
    """The properties `properties_json` wrote."""
    return Properties(**_known(json.loads(text), _PROPERTY_NAMES)) if text else NO_PROPERTIES


def _properties(properties: Properties) -> Document:
    return {name: value for name in _PROPERTY_NAMES if (value := getattr(properties, name)) is not None}


def _known(document: Mapping[str, Any], names: tuple[str, ...]) -> Document:
    """Only the fields this version has: a neighbouring newer version may have added some."""
    return {name: document[name] for name in names if name in document}


# ------------------------------------------------------------------------------------------------ message, letter


def body_document(body: bytes) -> Any:
    """A body as text where it is UTF-8, else {"$bytes": base64}; exact either way."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"$bytes": base64.b64encode(body).decode("ascii")}


def body_from_document(value: Any) -> bytes:
    """The bytes `body_document` was given."""
    if isinstance(value, str):
        return value.encode()
    found = untagged(value)
    if not isinstance(found, bytes):
        raise InvalidMessageError(f'A body must be text or {{"$bytes": …}}, not {value!r:.60}.')
    return found


_MESSAGE_PLAIN: Final = ("id", "content_type", "key", "tenant", "priority", "published_at", "expires_at")


def message_document(message: Message) -> Document:
    """A message as a JSON object; `message_from_document` gives it back exactly."""
    return {
        "schema": SCHEMA,
        **{name: getattr(message, name) for name in _MESSAGE_PLAIN},
        "headers": tagged(dict(message.headers)),
        "properties": _properties(message.properties),
        "body": body_document(message.body),
        "original": None if message.original is None else body_document(message.original),
    }


def message_from_document(document: Mapping[str, Any]) -> Message:
    """The message of this document. Raises `InvalidMessageError` where it is not one, `SchemaTooNewError` where a
    newer redrive wrote it.
    """
    with _Reading("message", document):
        original = document.get("original")
        properties = _known(document.get("properties") or {}, _PROPERTY_NAMES)
        return Message(
            **_known(document, _MESSAGE_PLAIN),
            headers=untagged(document.get("headers") or {}) or NO_HEADERS,
            properties=Properties(**properties) if properties else NO_PROPERTIES,
            body=body_from_document(document["body"]),
            original=None if original is None else body_from_document(original),
        )


_ATTEMPT_NAMES: Final = tuple(field.name for field in fields(Attempt))


def attempt_document(attempt: Attempt) -> Document:
    """One history entry; what is None is left out."""
    return {name: value for name in _ATTEMPT_NAMES if (value := getattr(attempt, name)) is not None}


def attempt_from_document(document: Mapping[str, Any]) -> Attempt:
    """The history entry of this document. Raises as `message_from_document`."""
    with _Reading("history entry", document):
        return Attempt(**{**_known(document, _ATTEMPT_NAMES), "outcome": AttemptOutcome(document["outcome"])})


def history_json(history: tuple[Attempt, ...]) -> str | None:
    """A history as JSON text; None where it is empty."""
    return _encode([attempt_document(entry) for entry in history]) if history else None


def history_from_json(text: str | None) -> tuple[Attempt, ...]:
    """The history `history_json` wrote, oldest first."""
    return tuple(attempt_from_document(entry) for entry in json.loads(text)) if text else ()


_LETTER_PLAIN: Final = (
    "id", "system", "queue", "dead_letter_queue", "error_type", "error_code", "attempt_count", "fingerprint",
    "group_title", "first_failed_at", "dead_lettered_at", "expires_at", "redrive_count", "previous", "outstanding_job",
    "version",
)  # fmt: skip


def letter_document(letter: Letter) -> Document:
    """A letter as a JSON object with everything in it; `letter_from_document` gives it back exactly."""
    return {
        "schema": SCHEMA,
        **{name: getattr(letter, name) for name in _LETTER_PLAIN},
        "reason_code": letter.reason.code,
        "reason_text": letter.reason.text,
        "state": str(letter.state),
        "history": [attempt_document(entry) for entry in letter.history],
        "message": message_document(letter.message),
    }


def letter_from_document(document: Mapping[str, Any]) -> Letter:
    """The letter of this document. Raises as `message_from_document`."""
    with _Reading("letter", document):
        return Letter(
            **_known(document, _LETTER_PLAIN),
            reason=Reason(code=document["reason_code"], text=document["reason_text"]),
            state=ReviewState(document.get("state", ReviewState.PENDING)),
            history=tuple(attempt_from_document(entry) for entry in document.get("history", ())),
            message=message_from_document(document["message"]),
        )


# ------------------------------------------------------------------------------------------------ redrive jobs

_SELECTION_NAMES: Final = tuple(field.name for field in fields(Selection))
_OPTION_NAMES: Final = tuple(field.name for field in fields(JobOptions))


def selection_document(selection: Selection) -> Document:
    """The conditions of a selection that restrict anything."""
    document = {name: value for name in _SELECTION_NAMES if (value := getattr(selection, name))}
    if "states" in document:
        document["states"] = sorted(str(state) for state in document["states"])
    if "ids" in document:
        document["ids"] = list(document["ids"])
    if "headers" in document:
        document["headers"] = [list(pair) for pair in document["headers"]]
    return document | {name: 0 for name in ("since", "until") if getattr(selection, name) == 0}


def selection_from_document(document: Mapping[str, Any]) -> Selection:
    """The selection of this document. Raises as `message_from_document`."""
    with _Reading("selection", document):
        known = _known(document, _SELECTION_NAMES)
        known["ids"] = tuple(document.get("ids", ()))
        known["headers"] = tuple((name, value) for name, value in document.get("headers", ()))
        known["states"] = frozenset(ReviewState(state) for state in document.get("states", ()))
        return Selection(**known)


def options_document(options: JobOptions) -> Document:
    """All options of a redrive job."""
    return {
        **{name: getattr(options, name) for name in _OPTION_NAMES},
        "even_if": [str(each) for each in options.even_if],
    }


def options_from_document(document: Mapping[str, Any]) -> JobOptions:
    """The options of this document. Raises as `message_from_document`."""
    with _Reading("job options", document):
        even_if = tuple(RefusalCode(each) for each in document.get("even_if", ()))
        return JobOptions(**{**_known(document, _OPTION_NAMES), "even_if": even_if})


class _Reading:
    """Turns what a malformed document raises into `InvalidMessageError` naming what it should have been."""

    __slots__ = ("_what",)

    def __init__(self, what: str, document: Mapping[str, Any]) -> None:
        self._what = what
        version = document.get("schema", SCHEMA)
        if isinstance(version, int) and version > SCHEMA:
            raise SchemaTooNewError(
                f"This {what} has schema {version}; this redrive reads up to {SCHEMA}. Nothing was changed.",
                hint="Upgrade redrive: pip install --upgrade redrive",
            )

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, KeyError | TypeError | ValueError | AttributeError | RecursionError):
            raise InvalidMessageError(f"This is not a {self._what}: {error!r:.120}. Nothing was changed.") from error
