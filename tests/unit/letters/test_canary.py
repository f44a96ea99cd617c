"""The canary: who goes first, and what the test stops."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.canary import (
    MAX_STRATA,
    REST,
    Choice,
    Stratum,
    StratumName,
    Verdict,
    evidence,
    share,
    verdict,
)

LETTERS: Final = 10_000
CANARY: Final = 400
BATCH: Final = 20
LATER_BATCH: Final = 800
SEEDS: Final = 200

Letters = list[tuple[StratumName, bool]]


def causes(draw: random.Random, bad: int) -> Letters:
    """Letters of some forty groups and tenants; the bad ones are a cause: all letters of a stratum or two."""
    sizes: list[int] = []
    while sum(sizes) < LETTERS - bad:
        sizes.append(min(draw.randint(20, 500), LETTERS - bad - sum(sizes)))
    first = draw.randint(bad // 3, bad)
    letters = [((f"g{number}", "t"), False) for number, size in enumerate(sizes) for _ in range(size)]
    letters += [(("g-bad", f"t{number >= first}"), True) for number in range(bad)]
    draw.shuffle(letters)
    return letters


def anywhere(draw: random.Random, bad: int) -> Letters:
    """The same letters, but the bad ones lie anywhere."""
    letters = causes(draw, bad)
    wrong = set(draw.sample(range(LETTERS), bad))
    return [(name, number in wrong) for number, (name, _) in enumerate(letters)]


def run(letters: Letters, seed: int) -> tuple[bool, int]:
    """(whether the job was stopped, after how many sends); the rest goes in order of death."""
    choice = Choice(f"job-{seed}", CANARY)
    for position, (name, _) in enumerate(letters):
        choice.show(position, f"dl_{position}", name)
    chosen = choice.chosen()
    first = set(chosen)
    order = [*chosen, *(position for position in range(LETTERS) if position not in first)]
    counts: dict[StratumName, list[int]] = {name: [size, 0, 0] for name, size in choice.sizes.items()}
    for start, end in [*pairwise(range(0, CANARY + 1, BATCH)), *pairwise(range(CANARY, LETTERS + 1, LATER_BATCH))]:
        for position in order[start:end]:
            name, is_bad = letters[position]
            counts[name][1] += 1
            counts[name][2] += is_bad
        strata = [Stratum(size=size, known=known, failed=failed) for size, known, failed in counts.values()]
        if verdict(strata, is_over=end == CANARY) is Verdict.STOP:
            return True, end
    return False, LETTERS


def stopped(make: Callable[[random.Random, int], Letters], bad: int, *, within: int) -> float:
    """Of so many jobs, the part that was stopped."""
    runs = [run(make(random.Random(seed), bad), seed) for seed in range(SEEDS)]
    return sum(is_stopped and sent <= within for is_stopped, sent in runs) / SEEDS


def test_three_percent_of_one_cause_are_stopped_within_the_canary() -> None:
    assert stopped(causes, 300, within=CANARY) >= 0.95


def test_one_percent_of_one_cause_goes_through() -> None:
    assert stopped(causes, 100, within=LETTERS) <= 0.05


def test_bad_letters_that_lie_anywhere_are_told_apart_as_well_as_can_be() -> None:
    assert stopped(anywhere, 300, within=CANARY) >= 0.88
    assert stopped(anywhere, 100, within=LETTERS) <= 0.09


def test_every_stratum_is_tried_before_any_is_tried_twice() -> None:
    choice = Choice("job", 30)
    for position in range(1_000):
        choice.show(position, f"dl_{position}", (f"g{min(position, 19)}", "t"))

    chosen = choice.chosen()

    assert set(range(19)) <= set(chosen)
    assert len(set(chosen)) == len(chosen) == 30


def test_a_job_always_chooses_the_same_and_another_job_others() -> None:
    def chosen(job_id: str) -> list[int]:
        choice = Choice(job_id, 10)
        for position in range(500):
            choice.show(position, f"dl_{position}", ("g", "t"))
        return choice.chosen()

    assert chosen("a") == chosen("a")
    assert chosen("a") != chosen("b")


def test_strata_are_bounded() -> None:
    choice = Choice("job", 5)
    for position in range(3 * MAX_STRATA):
        choice.show(position, f"dl_{position}", (f"g{position}", "t"))

    assert len(choice.sizes) == MAX_STRATA + 1
    assert choice.sizes[REST] == 2 * MAX_STRATA


def test_fewer_letters_than_wanted_are_all_chosen() -> None:
    choice = Choice("job", 50)
    for position in range(7):
        choice.show(position, f"dl_{position}", ("g", f"t{position % 2}"))

    assert sorted(choice.chosen()) == list(range(7))


strata = st.lists(
    st.tuples(st.integers(1, 500), st.integers(0, 500), st.integers(0, 500)).map(
        lambda each: Stratum(size=each[0], known=min(each[:2]), failed=min(each))
    ),
    max_size=20,
)


@given(strata)
def test_the_share_is_one_and_more_failures_weigh_more(found: list[Stratum]) -> None:
    assert 0 <= share(found) <= 1
    worse = [Stratum(size=each.size, known=each.known, failed=each.known) for each in found]
    assert evidence(found) <= evidence(worse) + 1e-9


@given(strata, st.booleans())
def test_what_nothing_speaks_against_is_never_stopped(found: list[Stratum], is_over: bool) -> None:
    fine = [Stratum(size=each.size, known=each.known, failed=0) for each in found]

    assert verdict(fine, is_over=is_over) is (Verdict.GO if is_over else Verdict.WAIT)


@pytest.mark.parametrize("failed", [3, 5])
def test_a_few_failures_at_once_stop_at_once(failed: int) -> None:
    assert verdict([Stratum(size=1_000, known=5, failed=failed)], is_over=False) is Verdict.STOP
