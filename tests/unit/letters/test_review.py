"""Review states: every pair of states, and the steps that are recorded."""

from __future__ import annotations

import itertools

import pytest

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.review import TRANSITIONS, ReviewEvent, moves

S, E = ReviewState, ReviewEvent
LEGAL_EVENTS = {
    (S.PENDING, E.REVIEW): S.REVIEWED,
    (S.REVIEWED, E.REPLAY): S.REPLAYED,
    (S.REVIEWED, E.CLOSE): S.CLOSED,
    (S.REPLAYED, E.CLOSE): S.CLOSED,
    (S.CLOSED, E.RESTORE): S.PENDING,
}
STEPS = {
    (S.PENDING, S.REVIEWED): (S.REVIEWED,),
    (S.PENDING, S.REPLAYED): (S.REVIEWED, S.REPLAYED),
    (S.PENDING, S.CLOSED): (S.REVIEWED, S.CLOSED),
    (S.REVIEWED, S.REPLAYED): (S.REPLAYED,),
    (S.REVIEWED, S.CLOSED): (S.CLOSED,),
    (S.REPLAYED, S.CLOSED): (S.CLOSED,),
    (S.CLOSED, S.PENDING): (S.PENDING,),
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(ReviewState, ReviewEvent)))
def test_every_pair_of_state_and_event_is_as_the_document_has_it(state: ReviewState, event: ReviewEvent) -> None:
    assert LEGAL_EVENTS.get((state, event)) == TRANSITIONS[state].get(event)


@pytest.mark.parametrize(("start", "to"), list(itertools.product(ReviewState, ReviewState)))
def test_every_wish_comes_down_to_legal_steps_or_is_refused_with_the_reason(
    start: ReviewState, to: ReviewState
) -> None:
    found = moves(start, to)

    if (start, to) in STEPS:
        assert STEPS[start, to] == found
    else:
        assert isinstance(found, str)
        assert str(start) in found


@pytest.mark.parametrize(("start", "to"), list(STEPS))
def test_each_recorded_step_is_in_the_table(start: ReviewState, to: ReviewState) -> None:
    state = start
    for step in STEPS[start, to]:
        assert step in TRANSITIONS[state].values()
        state = step
