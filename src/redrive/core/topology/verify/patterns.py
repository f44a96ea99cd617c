"""Routing keys, many at once: a pattern is a set of keys, as a topic binding describes one.

A key is split at its dots into words; `*` stands for exactly one word, `#` for any number of them, none included. A
key without wildcards is the pattern of one key, so that direct, topic and fanout exchanges are all walked the same way
(fanout: `#`). Patterns are run as small automata whose states are bits of one whole number: nothing here recurses,
and every search has a budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
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

BUDGET: Final = 200_000
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
    return _closed(pattern, 1)


def step(pattern: Pattern, states: int, word: str) -> int:
    """The states after one more word; 0: no key that begins so matches."""
    after, place = 0, 0
    while states >> place:
        if states >> place & 1 and place < len(pattern):
            token = pattern[place]
            if token is Wild.WORDS:
                after |= 1 << place
            elif token is Wild.WORD or token == word:
                after |= 1 << (place + 1)
        place += 1
    return _closed(pattern, after)


def accepts(pattern: Pattern, states: int) -> bool:
    """Whether the key may end here."""
    return bool(states >> len(pattern) & 1)


def _closed(pattern: Pattern, states: int) -> int:
    for place, token in enumerate(pattern):
        if token is Wild.WORDS and states >> place & 1:
            states |= 1 << (place + 1)
    return states


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
    return first_key((left, right), all) is not None


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
