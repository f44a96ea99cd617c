"""Groups: every move of the table, and what a new failure reopens."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.groups import (
    GROUP_TRANSITIONS,
    GroupChange,
    GroupState,
    GroupWork,
    Ignored,
    changed,
    place_after,
    reopening,
)
from redrive.errors import ConfigurationError

S = GroupState
LEGAL = {
    (S.OPEN, S.ACKNOWLEDGED), (S.OPEN, S.IGNORED), (S.OPEN, S.RESOLVED),
    (S.ACKNOWLEDGED, S.OPEN), (S.ACKNOWLEDGED, S.IGNORED), (S.ACKNOWLEDGED, S.RESOLVED),
    (S.IGNORED, S.OPEN), (S.IGNORED, S.ACKNOWLEDGED), (S.IGNORED, S.RESOLVED),
    (S.RESOLVED, S.OPEN),
}  # fmt: skip


def to(state: GroupState, **more: object) -> GroupChange:
    return GroupChange(fingerprint="fp-1", actor="ann", at=9, to=state, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("start", "end"), list(itertools.product(S, S)))
def test_every_pair_of_states_is_as_the_document_has_it(start: GroupState, end: GroupState) -> None:
    result = changed(GroupWork(state=start), to(end), seen=3)

    assert ((start, end) in LEGAL) == (end in GROUP_TRANSITIONS[start]) == isinstance(result, GroupWork)
    if isinstance(result, str):
        assert str(start) in result


def test_a_move_takes_its_bounds_along_and_leaves_old_ones() -> None:
    ignored = changed(GroupWork(), to(S.IGNORED, ignored=Ignored(more=3)), seen=7)
    assert isinstance(ignored, GroupWork)
    assert (Ignored(more=3), 7) == (ignored.ignored, ignored.count_then)

    resolved = changed(ignored, to(S.RESOLVED, resolved_in="2.0"), seen=9)

    assert isinstance(resolved, GroupWork)
    assert (None, "2.0", 9) == (resolved.ignored, resolved.resolved_in, resolved.count_then)


@pytest.mark.parametrize(
    ("failed_in", "resolved_in", "comes_back"),
    [
        ("1.9", "1.10", False),
        ("1.10", "1.9", True),
        ("1.4.2", "1.4.2", True),
        ("v1.4.1", "1.4.2", False),
        ("1.4.2rc1", "1.4.2", False),
        ("1.4.2.1", "1.4.2", True),
        ("2026-11-28", "2026-11-27", True),
        (None, "1.4.2", True),
        ("1.0", None, True),
    ],
)
def test_an_older_version_does_not_reopen_what_a_newer_one_fixed(
    failed_in: str | None, resolved_in: str | None, comes_back: bool
) -> None:
    work = GroupWork(state=S.RESOLVED, resolved_in=resolved_in)

    assert comes_back == (reopening(work, version=failed_in, at=1, seen=1, lately=1) is not None)


@given(
    state=st.sampled_from(S),
    version=st.none() | st.text(max_size=20),
    resolved_in=st.none() | st.text(max_size=20),
    bounds=st.builds(Ignored, until=st.none() | st.integers(0, 9), more=st.none() | st.integers(1, 9)),
    seen=st.integers(0, 20),
)
def test_only_what_was_set_aside_is_reopened(
    state: GroupState, version: str | None, resolved_in: str | None, bounds: Ignored, seen: int
) -> None:
    work = GroupWork(state=state, resolved_in=resolved_in, ignored=bounds if state is S.IGNORED else None)

    why = reopening(work, version=version, at=5, seen=seen, lately=0)

    if state in (S.OPEN, S.ACKNOWLEDGED):
        assert why is None
    if state is S.IGNORED:
        is_over = (bounds.until is not None and bounds.until <= 5) or (bounds.more is not None and seen > bounds.more)
        assert is_over == (why is not None)


def test_a_cursor_is_read_back_or_refused() -> None:
    with pytest.raises(ConfigurationError):
        place_after("-3")
    assert (-12, "v1-a-b") == place_after("12-v1-a-b")
