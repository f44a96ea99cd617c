"""Archives over HTTP: the files of letters in the archive folder of this server: list, read, load again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

from redrive.core.letters.letter import Letter
from redrive.errors import NotFoundError
from redrive.runtime.archive import archive_files, numbered_lines_of
from redrive.service import Loading
from redrive.views import archive_document
from redrive.web.admin.call import Call
from redrive.web.admin.shown import is_whole, letter_line, shown_anywhere
from redrive.web.admin.transfer import loaded_document

BATCH: Final = 20
"""Lines read at once."""

Line = tuple[int, bytes, Letter | None]


async def list_archives(call: Call) -> Any:
    """Every file, with what lies in it."""
    found = await call.service.archives()
    return {"archives": [{**archive_document(each), "file": each.path.name} for each in found]}


async def read_archive(call: Call) -> Response:
    """The file line by line, as it is. Where something of a letter is hidden from the role its line is redacted, and a
    line that is no letter is left out: nobody knows what is in it.
    """
    path = await _file(call)
    return call.streams.of_lines(_shown(call, path), name="archive.jsonl")


async def _shown(call: Call, path: Path) -> AsyncIterator[bytes]:
    may_see_all = shown_anywhere(call) is None
    async for _, line, letter in _lines(path):
        if may_see_all:
            yield line if line.endswith(b"\n") else line + b"\n"
        elif letter is not None:
            yield line if is_whole(call, letter.message) else await letter_line(call, letter)


async def restore_archive(call: Call) -> Any:
    """Store the letters of this file; those that are there already stay as they are, and so does the file. One that
    the store cannot hold is named, and keeps no other out. Killed half-way, some are stored; the same again stores the
    rest.
    """
    path, body = await _file(call), call.body
    loading, unreadable = Loading(service=call.service, is_dry=body.dry_run), 0
    async for number, line, letter in _lines(path):
        if letter is None:
            unreadable += 1
        else:
            await loading.add(letter, line=number, size=len(line))
    await loading.flush()
    return {**loaded_document(call, loading), "unreadable": unreadable}


async def _file(call: Call) -> Path:
    """By its name among those that are there: no path leads anywhere else."""
    name = call.path["archive"]
    found = await asyncio.to_thread(archive_files, call.service.archive_folder)
    path = next((each for each in found if each.name == name), None)
    if path is None:
        raise NotFoundError(f'There is no archive "{name}". Nothing was changed.')
    return path


async def _lines(path: Path) -> AsyncIterator[Line]:
    lines = numbered_lines_of(path)
    try:
        while batch := await asyncio.to_thread(_some, lines):
            for each in batch:
                yield each
    finally:
        close = getattr(lines, "close", None)
        if close is not None:
            close()


def _some(lines: Iterator[Line]) -> list[Line]:
    return list(islice(lines, BATCH))
