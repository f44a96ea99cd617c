"""The states of one delivery, every pair of state and event."""

from __future__ import annotations

import itertools

import pytest

from redrive.core.delivery import TRANSITIONS, DeliveryEvent, DeliveryState, advance
from redrive.errors import TransitionError

S, E = DeliveryState, DeliveryEvent
LEGAL = {
    (S.RECEIVED, E.START): S.RUNNING,
    (S.RECEIVED, E.SETTLE): S.SETTLED,
    (S.RECEIVED, E.LOSE): S.LOST,
    (S.RUNNING, E.SETTLE): S.SETTLED,
    (S.RUNNING, E.LOSE): S.LOST,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(DeliveryState, DeliveryEvent)))
def test_every_pair_of_state_and_event_moves_as_the_table_says_or_is_refused(
    state: DeliveryState, event: DeliveryEvent
) -> None:
    if (state, event) in LEGAL:
        assert LEGAL[state, event] == advance(state, event)
    else:
        with pytest.raises(TransitionError, match=f"{state} cannot {event}"):
            advance(state, event)


def test_a_settled_or_lost_delivery_never_moves_again() -> None:
    assert ({}, {}) == (TRANSITIONS[S.SETTLED], TRANSITIONS[S.LOST])
