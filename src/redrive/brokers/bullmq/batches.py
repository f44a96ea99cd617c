"""Batches: how much one script may have to do, for it holds up every other client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

MAX_SENT: Final = 200
"""Jobs in one script that adds or ends them."""
MAX_SENT_BYTES: Final = 4 * 1024 * 1024
"""Of bodies in one script, and of jobs in one hand-over, unless a single one is larger."""


def parts(elements: Sequence[Any], bytes_of: Callable[[Any], int]) -> Iterator[Sequence[Any]]:
    """The elements in parts that one script may have: not too many, not too large."""
    part: list[Any] = []
    size = 0
    for element in elements:
        added = bytes_of(element)
        if part and (len(part) == MAX_SENT or size + added > MAX_SENT_BYTES):
            yield part
            part, size = [], 0
        part.append(element)
        size += added
    if part:
        yield part


async def all_of(steps: Sequence[Any]) -> None:
    """Each of them, together; the first error once all have ended."""
    if len(steps) == 1:
        await steps[0]
        return
    for outcome in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
