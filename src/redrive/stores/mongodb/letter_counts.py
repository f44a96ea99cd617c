"""What `LetterStore.stats` counts, of letters that are read one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from redrive.core.letters import ages
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES
from redrive.core.ports import LetterStats
from redrive.core.units import UnixMs
from redrive.stores.mongodb.letter_documents import text_out_or_empty
from redrive.stores.mongodb.link import Document

NO_TENANT: Final = "-"
_NAMES: Final = ("queue", "reason_code", "fingerprint", "tenant")


async def counted(
    documents: AsyncIterator[Document], *, top: int, ages_at: UnixMs | None, up_to: int | None
) -> LetterStats:
    """The counts of these letters, in order of death; see the port."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("state", *_NAMES)}
    deaths: list[UnixMs] = []
    oldest: UnixMs | None = None
    total, is_at_least = 0, False
    async for document in documents:
        own = document["redrive"]
        if up_to is not None and total >= up_to:
            is_at_least = True
            if ages_at is None:
                break
            deaths.append(own["dead_lettered_at"])
            continue
        total += 1
        for name in _NAMES:
            counts[name][text_out_or_empty(own[name]) or (NO_TENANT if name == "tenant" else "")] += 1
        counts["state"][document["reviewState"]] += 1
        deaths.append(own["dead_lettered_at"])
        if ReviewState(document["reviewState"]) in OPEN_STATES:
            oldest = deaths[-1] if oldest is None else min(oldest, deaths[-1])
    return LetterStats(
        total=total,
        by_state=_largest(counts["state"], top),
        by_queue=_largest(counts["queue"], top),
        by_reason=_largest(counts["reason_code"], top),
        by_group=_largest(counts["fingerprint"], top),
        by_tenant=_largest(counts["tenant"], top),
        oldest_at=oldest,
        ages=None if ages_at is None else ages.ages_at(ages_at, deaths),
        is_at_least=is_at_least,
    )


def _largest(counts: Counter[str], top: int) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:top])
