"""A letter that went out into a file and came back into an empty store is the same in every byte and kind."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.message import Message
from redrive.runtime.app import Redrive
from redrive.runtime.archive import Archive, letters_in
from redrive.service import Service
from redrive.testing.samples import letter, message
from tests.unit.test_wire import EVERY_KIND, LETTERS, same

BARE = Message(id="m", body=b"")
LARGEST = 16 * 1024 * 1024


def assert_same(one: Letter, other: Letter) -> None:
    assert replace(one, message=BARE) == replace(other, message=BARE)
    assert same(dict(one.message.headers), dict(other.message.headers))
    assert replace(one.message, headers={}) == replace(other.message, headers={})


@settings(deadline=None)
@given(LETTERS)
def test_any_letter_comes_back_from_its_file(found: Letter) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "letters.jsonl"
        with Archive(path) as archive:
            archive.write([found, found])

        for back in letters_in(path):
            assert_same(found, back)


async def through(url: str, given_letter: Letter, folder: Path) -> Letter:
    """Stored, exported from the store, imported into another one, and read there."""
    path = folder / "out.jsonl"
    async with Redrive("one", url.format("one")) as first:
        await first.backend.letters.put([given_letter])
        with Archive(path) as archive:
            archive.write([found async for found in Service(first).whole(Selection())])
    async with Redrive("two", url.format("two")) as second:
        assert 1 == await Service(second).take_in(list(letters_in(path)))
        return (await Service(second).letter(given_letter.id)).letter


@pytest.mark.parametrize("url", ["memory://", "sqlite:////{folder}/{{}}.db"])
@pytest.mark.parametrize(
    "body",
    [b"", b"\x00", b'{"s":"a\\u0000b"}', b"\xff\xfe\x00\xd8", "\U0001f4a9".encode(), os.urandom(LARGEST)],
    ids=["empty", "nul", "escaped nul", "no text", "astral", "16 MiB"],
)
async def test_bodies_and_every_kind_of_header_go_from_store_to_store(url: str, body: bytes, tmp_path: Path) -> None:
    hard = {**EVERY_KIND, "nul": "x\x00", "surrogate": "\ud800", "deep": [[[{"a": b"\x00"}]]]}
    given_letter = letter("dl_1", message=message(body=body, headers=hard, key="k\x00", tenant="\udfff"))

    back = await asyncio.wait_for(through(url.format(folder=tmp_path), given_letter, tmp_path), 60)

    assert_same(given_letter, back)
