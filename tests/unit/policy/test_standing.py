"""Who waits too long, and who gets most of it."""

from __future__ import annotations

from redrive.core.policy.fairness import TenantRecord
from redrive.core.policy.standing import Standing, monopolising, share_of, starved


def standing(name: str, *, waiting: int = 0, rounds: int = 0, at: int | None = None, total: int = 0) -> Standing:
    record = TenantRecord(last_processed_at=at, rounds_without_processing=rounds, total_processed=total)
    return Standing(name=name, waiting=waiting, record=record)


ALL = (
    standing("idle", at=1, total=5),
    standing("busy", waiting=900, at=90, total=80),
    standing("held", waiting=3, rounds=7, at=50, total=10),
    standing("new", waiting=1),
    standing("late", waiting=2, at=40, total=5),
)


def test_the_starved_are_those_that_wait_and_were_served_least_lately() -> None:
    assert ["held", "new", "late", "busy"] == [each.name for each in starved(ALL)]
    assert ["held", "new"] == [each.name for each in starved(ALL, top=2)]


def test_who_gets_most_comes_first_and_who_gets_nothing_not_at_all() -> None:
    assert ["busy", "held", "idle", "late"] == [each.name for each in monopolising(ALL)]
    assert 0.8 == share_of(ALL[1], ALL)
    assert 0.0 == share_of(ALL[3], [ALL[3]])
