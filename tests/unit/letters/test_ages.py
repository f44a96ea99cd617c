"""Ages of letters by bucket: every letter is in exactly one, and nothing is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.ages import AGE_BOUNDS_MS, NO_AGES, ages_at

NOW = 1_700_000_000_000


@given(ages=st.lists(st.integers(-1_000, 200 * 86_400_000), max_size=40))
def test_every_letter_is_in_the_bucket_of_its_age(ages: list[int]) -> None:
    found = ages_at(NOW, [NOW - age for age in ages])

    assert len(ages) == sum(found.counts)
    assert sum(max(0, age) for age in ages) == found.total_ms
    for place, bound in enumerate(AGE_BOUNDS_MS):
        assert sum(age <= bound for age in ages) == sum(found.counts[: place + 1])


def test_no_letters_have_no_ages() -> None:
    assert NO_AGES == ages_at(NOW, [])
    assert list(AGE_BOUNDS_MS) == sorted(AGE_BOUNDS_MS)
