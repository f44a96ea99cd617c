"""The review states of a letter as a table, and the recorded steps a wish comes down to.

    pending ─review→ reviewed ─replay→ replayed ─close→ closed
                        └─close→ closed ─restore→ pending

A person may ask for more than one step at once: redriving or closing a `pending` letter records `reviewed` by the
same actor first. A replayed letter never goes back to pending: if its copy fails again, that is a new, linked letter.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from redrive.core.letters.letter import ReviewState

CLOSED_BY: Final = "redrive"
CLOSED_NOTE: Final = "its redriven copy was processed"
"""Actor and note in the audit trail where a success closed the letter."""


class ReviewEvent(StrEnum):
    """What a person, or the success of a redriven copy, does to a letter."""

    REVIEW = "review"
    REPLAY = "replay"
    CLOSE = "close"
    RESTORE = "restore"


_S, _E = ReviewState, ReviewEvent
TRANSITIONS: Final[dict[ReviewState, dict[ReviewEvent, ReviewState]]] = {
    _S.PENDING: {_E.REVIEW: _S.REVIEWED},
    _S.REVIEWED: {_E.REPLAY: _S.REPLAYED, _E.CLOSE: _S.CLOSED},
    _S.REPLAYED: {_E.CLOSE: _S.CLOSED},
    _S.CLOSED: {_E.RESTORE: _S.PENDING},
}
"""{state: {event: next state}}; what is not here is refused."""


def moves(start: ReviewState, to: ReviewState) -> tuple[ReviewState, ...] | str:
    """The states to record one after the other, the last being `to`; or why the move is refused, for a person.

    >>> [str(state) for state in moves(ReviewState.PENDING, ReviewState.REPLAYED)]
    ['reviewed', 'replayed']
    """
    if start is to:
        return f"the letter is {start} already"
    if to in TRANSITIONS[start].values():
        return (to,)
    if start is ReviewState.PENDING and to in TRANSITIONS[ReviewState.REVIEWED].values():
        return (ReviewState.REVIEWED, to)
    return f"a {start} letter cannot become {to}: {_ADVICE[start]}"


_ADVICE: Final[dict[ReviewState, str]] = {
    ReviewState.PENDING: "review it first",
    ReviewState.REVIEWED: "replay it or close it",
    ReviewState.REPLAYED: "it was sent back; if the copy fails again a new letter comes, else close it",
    ReviewState.CLOSED: "restore it first",
}
