"""What is hostile: strategies for messages and requests, and how to draw many of them from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from redrive.core.message import Message, Properties
from redrive.core.ports import Outgoing

_JSON_LOOKALIKES: Final = st.sampled_from(
    [
        b"", b" ", b"null", b"[]", b"{}", b"{", b'{"a":', b'{"name": 1}', b'{"name": null, "count": "x"}',
        b"NaN", b"1e999",
        b'{"name":"a","count":1}', b'{"name":"a","name":"b","count":2}', b'"\\ud800"',
        b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}",
        b"[" * 5_000, b'{"a":' * 2_000, b'{"a":1}\x00', b"9" * 5_000,
        b'{"count": 1' + b"0" * 400 + b"}", b"\x1f\x8b\x08garbage",
        b'{"__proto__": {}, "$where": 1}', b"<?xml version='1.0'?>", b"\x00" * 100,
    ]
)  # fmt: skip
_BODIES: Final = st.one_of(
    st.binary(max_size=200),
    _JSON_LOOKALIKES,
    st.text(max_size=50).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text(max_size=50).map(lambda text: text.encode("utf-16", "surrogatepass")),
    st.binary(min_size=1, max_size=4).map(lambda part: part * 5_000),
)
_WORDS: Final = st.one_of(
    st.none(), st.just(""), st.text(max_size=30), st.sampled_from(["a" * 300, "\x00", "\n\r", "é", "%s{}"])
)
_CONTENT_TYPES: Final = st.one_of(
    st.sampled_from([None, "application/json", "text/plain", "application/octet-stream"]),
    st.sampled_from(["text/plain; charset=utf-16", "text/plain; charset=nonsense", "a/b; c"]),
    _WORDS,
)
_ENCODINGS: Final = st.sampled_from([None] * 8 + ["gzip", "identity", "br", "GZIP, gzip", "nonsense", "\x00"])
_NUMBERS: Final = st.integers(-(2**63), 2**63 - 1)
_HEADER_VALUES: Final = st.recursive(
    st.one_of(
        st.none(), st.booleans(), _NUMBERS, st.floats(), st.decimals(allow_nan=False, allow_infinity=False),
        st.text(max_size=20), st.binary(max_size=20), st.datetimes(timezones=st.just(UTC)),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
_HEADER_NAMES: Final = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["x-death", "x-redrive-letter", "x-redriven-count", "x-redrive-first-failed-at", "$t"]),
)
QUEUES: Final = ("hostile.typed", "hostile.dict", "hostile.text", "hostile.bytes", "hostile.thread")


def hostile_message() -> st.SearchStrategy[Outgoing]:
    """A message as a careless or malicious producer might send it to any of `QUEUES`."""
    message = st.builds(
        Message,
        id=st.uuids().map(str),
        body=_BODIES,
        content_type=_CONTENT_TYPES,
        key=st.one_of(st.none(), st.uuids().map(str), st.text(min_size=1, max_size=40).filter(str.strip)),
        tenant=_WORDS,
        priority=st.one_of(st.none(), st.integers(-5, 2**31)),
        headers=st.dictionaries(_HEADER_NAMES, _HEADER_VALUES, max_size=4),
        properties=st.builds(
            Properties, type=_WORDS, content_encoding=_ENCODINGS, correlation_id=_WORDS, trace_id=_WORDS
        ),
    )
    return st.builds(Outgoing, queue=st.sampled_from(QUEUES), message=message)


def _paths(known: str | None) -> st.SearchStrategy[str]:
    return st.text(max_size=20).map("/{}".format) if known is None else st.just(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request to the gateway, in the pieces in which it arrives."""

    method: str
    path: str
    chunks: tuple[bytes, ...]
    headers: tuple[tuple[bytes, bytes], ...]
    is_signed: bool
    leaves: bool

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.chunks)


def hostile_request() -> st.SearchStrategy[Request]:
    """A request as a stranger might send it; every second one is signed, so that its body gets through."""
    name = st.one_of(
        st.sampled_from(
            [b"content-length", b"x-hub-signature-256", b"x-github-delivery", b"content-type", b"content-encoding"]
        ),
        st.binary(min_size=1, max_size=20).map(bytes.lower),
    )
    value = st.one_of(
        st.binary(max_size=40), st.sampled_from([b"-1", b"0", b"99999999999999999999", b"identity", b"sha256="])
    )
    return st.builds(
        Request,
        method=st.sampled_from(["POST"] * 12 + ["GET", "HEAD", "OPTIONS", "X\x00"]),
        path=st.sampled_from(["/known"] * 8 + [None]).flatmap(_paths),
        chunks=st.lists(_BODIES, max_size=3).map(tuple),
        headers=st.lists(st.tuples(name, value), max_size=4).map(tuple),
        is_signed=st.booleans(),
        leaves=st.sampled_from([False] * 9 + [True]),
    )


def generated(strategy: st.SearchStrategy[Any], count: int, number: int) -> list[Any]:
    """`count` examples of a strategy, the same ones for the same seed."""
    found: list[Any] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def keep(example: Any) -> None:
        found.append(example)

    keep()
    return found[:count]
