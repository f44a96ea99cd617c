"""The states of one delivery, as a table. A second settlement is refused, so the first one is the truth.

received ─start→ running ─settle→ settled
│               └─lose→ lost         (the lease passed on: whatever the handler still does, it cannot settle)
├─settle→ settled                    (a duplicate, an expired one: ended without running)
└─lose→ lost
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from redrive.errors import TransitionError


class DeliveryState(StrEnum):
    """Where one hand-over stands."""

    RECEIVED = "received"
    RUNNING = "running"
    SETTLED = "settled"
    LOST = "lost"


class DeliveryEvent(StrEnum):
    """What can happen to a hand-over."""

    START = "start"
    SETTLE = "settle"
    LOSE = "lose"


_S, _E = DeliveryState, DeliveryEvent
TRANSITIONS: Final[dict[DeliveryState, dict[DeliveryEvent, DeliveryState]]] = {
    _S.RECEIVED: {_E.START: _S.RUNNING, _E.SETTLE: _S.SETTLED, _E.LOSE: _S.LOST},
    _S.RUNNING: {_E.SETTLE: _S.SETTLED, _E.LOSE: _S.LOST},
    _S.SETTLED: {},
    _S.LOST: {},
}
"""{state: {event: next state}}; what is not here is refused."""


def advance(state: DeliveryState, event: DeliveryEvent) -> DeliveryState:
    """The next state. Raises `TransitionError` where the table has none: nothing may be done with the delivery."""
    after = TRANSITIONS[state].get(event)
    if after is None:
        raise TransitionError(f"A delivery that is {state} cannot {event}. Nothing was changed.")
    return after
