"""The id a letter always gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.letter import letter_id

PARTS = st.tuples(
    st.text(st.characters()),
    st.none() | st.text(st.characters()),
    st.integers(0, 9),
    st.text(),
    st.text(),
    st.integers(0, 99),
)


def id_of(parts: tuple[str, str | None, int, str, str, int]) -> str:
    queue, key, cycle, message_id, position, published_at = parts
    return letter_id(queue, key=key, cycle=cycle, message_id=message_id, position=position, published_at=published_at)


def meaning(parts: tuple[str, str | None, int, str, str, int]) -> tuple[object, ...]:
    queue, key, cycle, message_id, position, published_at = parts
    return (queue, message_id, position) if key is None else (queue, key, cycle, published_at, True)


@given(PARTS, PARTS)
def test_two_letters_share_an_id_exactly_when_they_are_the_same_death(
    one: tuple[str, str | None, int, str, str, int], other: tuple[str, str | None, int, str, str, int]
) -> None:
    assert (meaning(one) == meaning(other)) == (id_of(one) == id_of(other))


def test_no_separator_in_a_name_makes_two_letters_one() -> None:
    one = letter_id("a", key="b\x001:0", cycle=0, message_id="m", position="p")
    other = letter_id("a\x00b", key="1:0", cycle=0, message_id="m", position="p")

    assert one != other


def test_an_id_is_the_same_for_ever() -> None:
    expected = "dl_de25b81dde401080b76f4212"

    assert expected == letter_id("q", key="k", cycle=0, message_id="m", position="p")
    assert expected == letter_id("q", key="k", cycle=0, message_id="another", position="elsewhere")
