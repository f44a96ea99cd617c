"""Routing keys, many at once: a pattern is a set of keys, as a topic binding describes one.

A key is split at its dots into words; `*` stands for exactly one word, `#` for any number of them, none included. A
key without wildcards is the pattern of one key, so that direct, topic and fanout exchanges are all walked the same way
(fanout: `#`). Patterns are run as small automata whose states are bits of one whole number: nothing here recurses,
and every search has a budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, TypeAlias


class Wild(Enum):
    """What is not a word in a pattern."""

    WORD = "*"
    WORDS = "#"


Token: TypeAlias = str | Wild
Pattern: TypeAlias = tuple[Token, ...]

EVERY: Final[Pattern] = (Wild.WORDS,)
"""Every key there is."""

STRANGER: Final = "\N{LATIN SMALL LETTER O WITH STROKE}ther"
"""A word no pattern has: all such words are routed alike."""

BUDGET: Final = 50_000
"""Steps of automata one search may take; beyond it nothing is claimed (`TooComplexError`)."""


class TooComplexError(Exception):
    """A search through keys took more than `BUDGET` steps. Never leaves the verifier."""


def literal(key: str) -> Pattern:
    """The pattern of this one key: `*` and `#` are ordinary words."""
    return tuple(key.split(".")) if key else ()


def topic(key: str) -> Pattern:
    """The pattern of a topic binding."""
    return tuple(Wild(word) if word in ("*", "#") else word for word in literal(key) if isinstance(word, str))


def is_literal(pattern: Pattern) -> bool:
    """One key only."""
    return not any(isinstance(token, Wild) for token in pattern)


def shown(pattern: Pattern) -> str:
    """As one would write the binding; a word that stands for any other as `…`."""
    words = (token.value if isinstance(token, Wild) else token for token in pattern)
    return ".".join("other" if word == STRANGER else word for word in words)


def start(pattern: Pattern) -> int:
    """The states before the first word."""
    return _entered(pattern, 0)


def step(pattern: Pattern, states: int, word: str) -> int:
    """The states after one more word; 0: no key that begins so matches."""
    after = 0
    while states:
        lowest = states & -states
        states ^= lowest
        place = lowest.bit_length() - 1
        if place == len(pattern):
            continue
        token = pattern[place]
        if token is Wild.WORDS:
            after |= _entered(pattern, place)
        elif token is Wild.WORD or token == word:
            after |= _entered(pattern, place + 1)
    return after


def _entered(pattern: Pattern, place: int) -> int:
    """The state at this place, and those that need no further word: `#` may stand for none."""
    states = 1 << place
    while place < len(pattern) and pattern[place] is Wild.WORDS:
        place += 1
        states |= 1 << place
    return states


def accepts(pattern: Pattern, states: int) -> bool:
    """Whether the key may end here."""
    return bool(states >> len(pattern) & 1)


def matches(pattern: Pattern, key: Pattern) -> bool:
    """Whether the pattern has this one key (a literal)."""
    if is_literal(pattern):
        return pattern == key
    states = start(pattern)
    for word in key:
        states = step(pattern, states, word if isinstance(word, str) else word.value)
    return accepts(pattern, states)


def overlap(left: Pattern, right: Pattern) -> bool:
    """Whether a key exists that both have."""
    if is_literal(left):
        return matches(right, left)
    if is_literal(right):
        return matches(left, right)
    seen, waiting = {(0, 0)}, [(0, 0)]
    while waiting:
        one, other = waiting.pop()
        if (one, other) == (len(left), len(right)):
            return True
        for place in _together((left, one), (right, other)):
            if place not in seen:
                seen.add(place)
                waiting.append(place)
    return False


def _together(left: tuple[Pattern, int], right: tuple[Pattern, int]) -> Iterator[tuple[int, int]]:
    """Where two patterns may be after reading nothing, or one word that both take."""
    (one, at), (other, there) = left, right
    first = one[at] if at < len(one) else None
    second = other[there] if there < len(other) else None
    if first is Wild.WORDS:
        yield at + 1, there
    if second is Wild.WORDS:
        yield at, there + 1
    if (
        first is not None
        and second is not None
        and (first == second or isinstance(first, Wild) or isinstance(second, Wild))
    ):
        yield at + (first is not Wild.WORDS), there + (second is not Wild.WORDS)


def vocabulary(patterns: Iterable[Pattern]) -> list[str]:
    """Every word the patterns name, and one that stands for all others."""
    words = {token for pattern in patterns for token in pattern if isinstance(token, str)}
    return [STRANGER, *sorted(words)]


def first_key(patterns: Sequence[Pattern], wanted: Callable[[Sequence[bool]], bool]) -> Pattern | None:
    """The shortest key for which `wanted` holds of which patterns have it, as a literal; None: there is none.
    Raises `TooComplexError`.
    """
    words = vocabulary(patterns)
    begin = tuple(start(pattern) for pattern in patterns)
    seen, budget = {begin}, BUDGET
    waiting: deque[tuple[tuple[int, ...], tuple[str, ...]]] = deque([(begin, ())])
    while waiting:
        states, key = waiting.popleft()
        if wanted([accepts(pattern, state) for pattern, state in zip(patterns, states, strict=True)]):
            return key
        budget -= len(words) * len(patterns)
        if budget < 0:
            raise TooComplexError
        for word in words:
            after = tuple(step(pattern, state, word) for pattern, state in zip(patterns, states, strict=True))
            if after not in seen:
                seen.add(after)
                waiting.append((after, (*key, word)))
    return None
