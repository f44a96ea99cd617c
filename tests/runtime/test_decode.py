"""Decoding never raises anything but `Undecodable`, whatever the bytes, the type and the encoding are."""

from __future__ import annotations

import dataclasses
import gzip
import zlib
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import Settings
from redrive.core.message import Message, Properties
from redrive.runtime.decode import Undecodable, make_decoder


@dataclasses.dataclass
class Order:
    id: int
    note: str = ""


class Model(pydantic.BaseModel):
    id: int
    note: str = ""


SETTINGS = Settings(max_body_bytes=10_000, max_decoded_bytes=20_000)
KINDS = [dict, bytes, str, Any, Order, Model, int, list[int], dict[str, Order]]
DECODERS = [make_decoder(kind, SETTINGS, where="test") for kind in KINDS]

TYPES = st.one_of(
    st.none(),
    st.sampled_from(
        ["application/json", "text/plain; charset=latin-1", "application/json;charset=utf-16", "application/x+json",
         "text/html; charset=hex", "text/plain; charset=", 'a/b; charset="', ";;;", "text/plain; charset=*=''"]
    ),
    st.text(max_size=40),
)  # fmt: skip
ENCODINGS = st.one_of(
    st.none(), st.sampled_from(["gzip", "deflate", "gzip, gzip", "br", "utf-8", ","]), st.text(max_size=10)
)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=50).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [b'{"id":1}', b'{"id":"x"}', b"[" * 9_000, b'{"id":' * 1_500, b"1e999", b"9" * 5_000, b'"\\ud800"']
    ),
    st.binary(max_size=100).map(lambda data: gzip.compress(data, mtime=0)),
    st.binary(max_size=100).map(zlib.compress),
)


@given(body=BODIES, content_type=TYPES, encoding=ENCODINGS)
def test_any_message_decodes_or_is_undecodable_with_a_reason(
    body: bytes, content_type: str | None, encoding: str | None
) -> None:
    message = Message(id="m", body=body, content_type=content_type, properties=Properties(content_encoding=encoding))
    problems = []
    for decode in DECODERS:
        try:
            decode(message)
        except Undecodable as error:
            problems.append(error)

    assert {error.code for error in problems} <= {"MALFORMED_PAYLOAD", "VALIDATION_FAILED", "PAYLOAD_TOO_LARGE"}
    assert all(error.text for error in problems)


WHOLE = gzip.compress(b'{"id":1}', mtime=0)


@pytest.mark.parametrize("packed", [WHOLE[:-1], WHOLE + b"more", b"", b"\x1f\x8b", b'{"id":1}'])
def test_gzip_that_is_cut_or_goes_on_is_malformed(packed: bytes) -> None:
    decode = make_decoder(dict, SETTINGS, where="test")
    properties = Properties(content_encoding="gzip")

    assert {"id": 1} == decode(Message(id="m", body=WHOLE, properties=properties))
    with pytest.raises(Undecodable, match="MALFORMED"):
        decode(Message(id="m", body=packed, properties=properties))


def test_text_is_decoded_in_its_own_charset() -> None:
    decode = make_decoder(str, SETTINGS, where="test")

    assert decode(Message(id="m", body=b"\xe9", content_type="text/plain; charset=ISO-8859-1")) == "é"
    with pytest.raises(Undecodable):
        decode(Message(id="m", body=b"\xe9", content_type="text/plain"))
