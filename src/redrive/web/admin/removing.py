"""Removing letters over HTTP: prune, and erase what is one person's."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redrive.core.units import UnixMs
from redrive.runtime.archive import Archive
from redrive.service import Prunable
from redrive.views import erasure_document
from redrive.web.admin.call import Call
from redrive.web.admin.shown import refuse_hidden


async def prune_letters(call: Call) -> Any:
    """Remove letters for good; each is in the archive, on disk, before it goes. Killed half-way, some went and the
    archive has more than those; the same again removes the rest.
    """
    body, service = call.body, call.service
    found = await service.prunable(refuse_hidden(call, body.older(call.now)), is_archived=body.archive)
    file = await _archive_of(service.archive_folder, call.now) if body.archive and not body.dry_run else None
    removed = None if body.dry_run else await _removed(call, found, file)
    return {
        "dry_run": body.dry_run,
        "letters": found.letters if body.limit is None else min(found.letters, body.limit),
        "removed": removed,
        "spared": found.spared,
        "archive": None if file is None else file.name,
    }


async def _removed(call: Call, found: Prunable, file: Path | None) -> int:
    with nullcontext() if file is None else Archive(file) as archive:
        return await call.service.remove(
            found.selection, actor=call.actor, note=call.body.note, archive=archive, limit=call.body.limit
        )


async def _archive_of(folder: Path, now: UnixMs) -> Path:
    """One file a day, in the folder where workers write theirs."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    return folder / f"pruned_{datetime.fromtimestamp(now / 1_000, UTC):%Y-%m-%d}.jsonl"


async def erase_letters(call: Call) -> Any:
    """Erase one person's letters, from the archives of this server too. Killed half-way, what is gone is gone, and the
    same again finds the rest.
    """
    body, service = call.body, call.service
    person = refuse_hidden(call, body.person(call.now))
    done = await service.to_erase(person) if body.dry_run else await service.erase(person, actor=call.actor)
    return {"dry_run": body.dry_run, **erasure_document(done)}
