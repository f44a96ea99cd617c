"""Letters as JSON lines over HTTP: out of the store, whole and exact, and into it.

Both are streams: no more than a batch is in memory, however many letters there are. A line is what `dlq export` writes,
so files go either way. Where a role does not see all of a letter its line is redacted, and no import takes it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import Response

from redrive.core.letters.letter import Letter
from redrive.core.wire import letter_from_document
from redrive.errors import RedriveError
from redrive.service import Loading
from redrive.views import loading_document
from redrive.web.admin.call import Call
from redrive.web.admin.lines import LetterLine
from redrive.web.admin.problems import Refused, problem_of, refuse
from redrive.web.admin.requests import checked
from redrive.web.admin.shown import as_shown, letter_line, refuse_hidden

MAX_LETTERS: Final = 1_000_000
"""Of one import."""
LINE_BODIES: Final = 4
"""A line has the body and the original, each a third longer in base64, and the history."""
MARGIN_BYTES: Final = 1_048_576
THREAD_BYTES: Final = 65_536
"""A longer line is read in a thread: others are answered meanwhile."""


async def export_letters(call: Call) -> Response:
    """These letters, oldest first, a line each. Looking changes nothing. What fails half-way cuts the answer off."""
    selection = refuse_hidden(call, call.query.selection(call.now))
    letters = call.service.whole(selection, limit=call.query.limit)
    first = await anext(letters, None)
    return call.streams.of_lines(_lines(call, first, letters), name="letters.jsonl")


async def _lines(call: Call, first: Letter | None, letters: AsyncIterator[Letter]) -> AsyncIterator[bytes]:
    if first is None:
        return
    yield await letter_line(call, first)
    async for letter in letters:
        yield await letter_line(call, letter)


async def import_letters(call: Call) -> Any:
    """Store letters of JSON lines; those that are there already stay as they are, so the same may be sent again. A
    letter that the store cannot hold is named, and keeps no other out.

    Killed half-way, or refused because of a line that is no letter, what came before it is stored, or most of it.
    """
    loading = Loading(service=call.service, is_dry=call.query.dry_run)
    limit = call.app.settings.max_body_bytes * LINE_BODIES + MARGIN_BYTES
    number = 0
    async for line in lines_of(call.lines, limit=limit):
        number += 1
        if not line.strip():
            continue
        try:
            if loading.letters >= MAX_LETTERS:
                raise refuse("invalid", f"{MAX_LETTERS} letters are the most at once; send the rest by itself.")
            letter = await _letter(line)
        except Refused as refused:
            raise await _at_line(call, loading, number, why=refused.problem.detail) from None
        await loading.add(letter, line=number, size=len(line))
    await loading.flush()
    return loaded_document(call, loading)


async def _at_line(call: Call, loading: Loading, number: int, *, why: str) -> Refused:
    await loading.flush()
    stored = loading.letters - loading.refused
    done = "Nothing was changed." if loading.is_dry else f"{stored} letters before it are stored."
    document = loaded_document(call, loading)
    del document["dry_run"]
    return refuse("invalid", f"Line {number}: {why} {done}", line=number, **document)


async def _letter(line: bytes) -> Letter:
    return await asyncio.to_thread(letter_of, line) if len(line) > THREAD_BYTES else letter_of(line)


def letter_of(line: bytes) -> Letter:
    """The letter of one line. Raises `Refused` where it is none, or has a field of another kind."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise refuse("malformed", "It is not JSON in UTF-8.") from None
    checked(document, LetterLine, allows_nul=True)
    try:
        return letter_from_document(document)
    except RedriveError as error:
        raise Refused(problem_of(error)) from None


def loaded_document(call: Call, loading: Loading) -> dict[str, Any]:
    """What was done."""
    found: dict[str, Any] = as_shown(call, loading_document(loading))
    return {"dry_run": loading.is_dry, **found}


async def lines_of(chunks: AsyncIterator[bytes], *, limit: int) -> AsyncIterator[bytes]:
    """What comes, line by line. Raises `Refused` (413) for a line of more than `limit` bytes."""
    held = bytearray()
    async for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for each in whole:
            held += each
            yield _within(held, limit)
            held.clear()
        held += rest
        if len(held) > limit:
            _within(held, limit)
    if held:
        yield bytes(held)


def _within(line: bytearray, limit: int) -> bytes:
    if len(line) > limit:
        raise refuse("body_too_large", f"A line has at most {limit} bytes. What came before it is stored.")
    return bytes(line)
