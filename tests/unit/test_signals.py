"""What a handler raises to say the outcome outright."""

from __future__ import annotations

import pickle

import pytest

from redrive.core.signals import DeadLetter, Requeue, RetryLater, Signal
from redrive.errors import ConfigurationError


@pytest.mark.parametrize(
    "signal", [RetryLater("30s"), RetryLater(), DeadLetter("bad", "BAD"), Requeue("1s"), Requeue()]
)
def test_a_signal_survives_pickling_whole(signal: Signal) -> None:
    copy = pickle.loads(pickle.dumps(signal))

    assert type(signal) is type(copy)
    assert vars(signal) == vars(copy)
    assert str(signal) == str(copy)


def test_a_broad_except_does_not_eat_a_signal() -> None:
    def handler() -> None:
        try:
            raise DeadLetter("no such order")
        except Exception:  # what a handler writes
            pytest.fail("eaten")

    with pytest.raises(DeadLetter):
        handler()


def test_a_dead_letter_without_a_reason_still_has_a_text() -> None:
    assert DeadLetter("  ").reason


@pytest.mark.parametrize("kind", [RetryLater, Requeue])
def test_a_signal_with_a_delay_that_is_none_is_refused(kind: type[RetryLater | Requeue]) -> None:
    with pytest.raises(ConfigurationError, match=f"{kind.__name__} delay"):
        kind("soon")
