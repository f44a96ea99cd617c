"""Text from outside: clean, cut, and codes made of names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.text import CUT_MARK, MAX_TEXT_BYTES, clean, code_of, cut, cut_head

ANY_TEXT = st.text(st.characters())  # surrogates and NUL too


def test_nul_and_lone_surrogates_are_replaced() -> None:
    assert "bad\ufffdbyte\ufffd" == clean("bad\x00byte\ud800")


@given(ANY_TEXT)
def test_clean_text_can_be_kept_by_every_store(text: str) -> None:
    kept = clean(text)

    assert b"\x00" not in kept.encode()
    assert len(text) == len(kept)
    assert kept == clean(kept)


def test_a_huge_text_is_cut_at_a_character_border_with_a_mark() -> None:
    kept = cut("界" * 100_000)

    assert kept.endswith(CUT_MARK)
    assert MAX_TEXT_BYTES - 3 < len(kept.encode()) <= MAX_TEXT_BYTES
    assert {"界", CUT_MARK} == set(kept)


@given(ANY_TEXT, st.integers(4, 40))
def test_a_cut_text_is_never_over_the_limit_and_a_short_one_is_whole(text: str, limit: int) -> None:
    whole = clean(text)
    head, tail = cut(text, limit), cut_head(text, limit)

    assert len(head.encode()) <= limit
    assert len(tail.encode()) <= limit
    if len(whole.encode()) <= limit:
        assert (whole, whole) == (head, tail)
    else:
        assert head.endswith(CUT_MARK)
        assert tail.startswith(CUT_MARK)
        assert whole.startswith(head.removesuffix(CUT_MARK))
        assert whole.endswith(tail.removeprefix(CUT_MARK))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ZeroDivisionError", "ZERO_DIVISION_ERROR"), ("HTTPError", "HTTP_ERROR"), ("OSError", "OS_ERROR"),
        ("ECONNREFUSED", "ECONNREFUSED"), ("HTTP_422", "HTTP_422"), ("out of stock", "OUT_OF_STOCK"), ("", "UNKNOWN"),
        ("Ошибка", "UNKNOWN"), ("x" * 500, "X" * 64),
    ],
)  # fmt: skip
def test_a_name_becomes_a_machine_code(name: str, code: str) -> None:
    assert code == code_of(name)
