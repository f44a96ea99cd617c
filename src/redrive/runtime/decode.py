"""From a message's bytes to the payload a handler is annotated with.

Order: size, content encoding, then by annotation. `bytes` takes the body as it is (after gzip), `str` decodes it in
the charset of its content type (UTF-8 where none is named); every other annotation reads JSON. A message without a
content type is taken for the setting `default_content_type`, JSON unless changed. A handler without an annotation
gets text for `text/*` and parsed JSON else. Whatever goes wrong here is `Undecodable`: a dead letter, never a handler
call and never a stopped consumer. The bytes themselves are never changed.
"""

from __future__ import annotations

import codecs
import sys
import typing
import zlib
from collections.abc import Callable
from email.message import EmailMessage
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec
import msgspec.inspect

from redrive.core.message import Message
from redrive.core.text import cut
from redrive.errors import ConfigurationError
from redrive.runtime.settings import Settings

MALFORMED: Final = "MALFORMED_PAYLOAD"
INVALID: Final = "VALIDATION_FAILED"
TOO_LARGE: Final = "PAYLOAD_TOO_LARGE"

TEXT_LIMIT: Final = 500
"""Characters of a decoder's complaint that are kept."""

_JSON: Final = "application/json"
_UNTYPED: Final = frozenset({"application/octet-stream", "binary/octet-stream"})
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_WINDOWS: Final = {"gzip": _GZIP_WINDOW, "x-gzip": _GZIP_WINDOW, "deflate": zlib.MAX_WBITS}

Decode: TypeAlias = Callable[[Message], Any]
_FromBytes: TypeAlias = Callable[[bytes], Any]


class Undecodable(Exception):
    """This body is no payload for this handler; `code` is the reason code of its dead letter."""

    def __init__(self, code: str, text: str, *, error_type: str | None = None) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = cut(text, TEXT_LIMIT)
        self.error_type = error_type


def make_decoder(payload_type: Any, settings: Settings, *, where: str) -> Decode:
    """The decoder for one consumer, made once. Raises `ConfigurationError` for a type no JSON can become."""
    if payload_type is bytes:
        return _Decoder(settings, None, as_text=False).decode
    if payload_type is str:
        return _Decoder(settings, None, as_text=True).decode
    return _Decoder(settings, _json_reader(payload_type, where), as_text=payload_type is Any).decode


class _Decoder:
    """`read_json` None: the payload is the body itself, as text or as bytes."""

    __slots__ = ("_as_text", "_default_type", "_max_body", "_max_decoded", "_read_json")

    def __init__(self, settings: Settings, read_json: _FromBytes | None, *, as_text: bool) -> None:
        self._read_json = read_json
        self._as_text = as_text
        self._max_body = settings.max_body_bytes
        self._max_decoded = settings.max_decoded_bytes
        self._default_type = settings.default_content_type

    def decode(self, message: Message) -> Any:
        """The payload. Raises `Undecodable`, and nothing else."""
        body = message.body
        if len(body) > self._max_body:
            text = f"The body has {len(body)} bytes, more than max_body_bytes ({self._max_body})."
            raise Undecodable(TOO_LARGE, text)
        encoding = message.properties.content_encoding
        if encoding:
            body = _unpacked(body, encoding, self._max_decoded)
        content_type = message.content_type or self._default_type
        read = self._read_json
        if read is None:
            return _text(body, content_type) if self._as_text else body
        if content_type != _JSON:
            if self._as_text and _parsed_type(content_type)[0].startswith("text/"):
                return _text(body, content_type)
            body = _json_bytes(body, content_type)
        return _read(read, body)


def _read(read: _FromBytes, body: bytes) -> Any:
    try:
        return read(body)
    except Undecodable:
        raise
    except msgspec.ValidationError as error:
        # The first value of a wrong kind ends the reading; what follows may not even be JSON.
        _check_json(body)
        raise Undecodable(INVALID, str(error), error_type="ValidationError") from error
    except _NOT_JSON as error:
        raise _malformed(error) from error
    except Exception as error:  # a payload class of the user's may raise anything in its own checks
        kind = type(error).__name__
        raise Undecodable(INVALID, f"{kind}: {error}", error_type=kind) from error


def _check_json(body: bytes) -> None:
    try:
        msgspec.json.decode(body)
    except _NOT_JSON as error:
        raise _malformed(error) from error


_NOT_JSON: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


def _malformed(error: Exception) -> Undecodable:
    return Undecodable(MALFORMED, f"The body is not JSON: {error}", error_type=type(error).__name__)


def _unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """The body without its content encodings, last applied first. Stops at `limit` bytes, however small the input."""
    for name in reversed([part.strip().lower() for part in encoding.split(",")]):
        if name in {"identity", ""}:
            continue
        window = _WINDOWS.get(name)
        if window is None:
            if name in _CHARSET_NAMES:
                continue
            raise Undecodable(MALFORMED, f'The content encoding "{cut(name, 40)}" is not known.')
        unpacker = zlib.decompressobj(window)
        try:
            body = unpacker.decompress(body, limit + 1)
        except zlib.error as error:
            raise Undecodable(MALFORMED, f"The body is not {name}: {error}", error_type="zlib.error") from error
        if len(body) > limit:
            raise Undecodable(TOO_LARGE, f"The unpacked body has more than max_decoded_bytes ({limit}).")
        if not unpacker.eof or unpacker.unused_data:
            raise Undecodable(MALFORMED, f"The body is not {name}: it ends too early or goes on after its end.")
    return body


_CHARSET_NAMES: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "binary", "8bit"})
"""What other clients write into content_encoding although it is a charset (Celery does)."""


def _text(body: bytes, content_type: str) -> str:
    charset = _parsed_type(content_type)[1] or "utf-8"
    try:
        return codecs.decode(body, _codec(charset))
    except (UnicodeError, ValueError) as error:
        kind = type(error).__name__
        raise Undecodable(MALFORMED, f"The body is not {charset} text: {error}", error_type=kind) from error


def _json_bytes(body: bytes, content_type: str) -> bytes:
    """UTF-8 bytes to read as JSON."""
    media_type, charset = _parsed_type(content_type)
    if not (media_type.endswith(("/json", "+json")) or media_type in _UNTYPED or media_type.startswith("text/")):
        raise Undecodable(MALFORMED, f'The content type "{cut(content_type, 80)}" is not JSON.')
    if charset is None or charset in _CHARSET_NAMES:
        return body
    return _text(body, content_type).encode("utf-8", "surrogatepass")


def _codec(charset: str) -> str:
    try:
        info = codecs.lookup(charset)
    except (LookupError, ValueError) as error:
        raise Undecodable(MALFORMED, f'The charset "{cut(charset, 40)}" is not known.') from error
    if not getattr(info, "_is_text_encoding", True):
        raise Undecodable(MALFORMED, f'"{cut(charset, 40)}" is not a charset.')
    return charset


@lru_cache(maxsize=256)
def _parsed_type(content_type: str) -> tuple[str, str | None]:
    """Media type and charset, both lower case; never fails, whatever a producer wrote."""
    media_type, _, rest = content_type.partition(";")
    charset = None
    if "charset" in rest.lower():
        header = EmailMessage()
        try:
            header["content-type"] = f"text/plain;{rest}".replace("\r", "").replace("\n", "")
            charset = header.get_content_charset()
        except (ValueError, IndexError, LookupError, AttributeError, TypeError, UnicodeError):
            charset = None
    return media_type.strip().lower(), charset


# ---------------------------------------------------------------------------------------------------- by annotation


def _json_reader(payload_type: Any, where: str) -> _FromBytes:
    if _is_pydantic(payload_type):
        return _pydantic_reader(payload_type)
    try:
        info = msgspec.inspect.type_info(payload_type)
        decoder = msgspec.json.Decoder(payload_type)
    except TypeError as error:
        raise ConfigurationError(f"{where}: no payload can become {payload_type!r}: {error}.") from error
    if isinstance(info, msgspec.inspect.CustomType):
        raise ConfigurationError(
            f"{where}: no payload can become {payload_type!r}.",
            hint="Use dict, bytes, str, a dataclass, a msgspec.Struct, a TypedDict or a pydantic model.",
        )
    return decoder.decode


def _is_pydantic(payload_type: Any) -> bool:
    if "pydantic" not in sys.modules:
        return False
    if hasattr(payload_type, "__get_pydantic_core_schema__"):
        return True
    return any(_is_pydantic(argument) for argument in typing.get_args(payload_type))


def _pydantic_reader(payload_type: Any) -> _FromBytes:
    import pydantic  # noqa: PLC0415 - an optional dependency, here only where the handler uses it

    validate = pydantic.TypeAdapter(payload_type).validate_json

    def read(body: bytes) -> Any:
        try:
            return validate(body)
        except pydantic.ValidationError as error:
            found = error.errors(include_url=False, include_input=False, include_context=False)
            is_malformed = any(each["type"] == "json_invalid" for each in found)
            text = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'payload'}: {each['msg']}" for each in found[:20])
            raise Undecodable(MALFORMED if is_malformed else INVALID, text, error_type="ValidationError") from error

    return read
