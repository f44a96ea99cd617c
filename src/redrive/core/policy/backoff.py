"""Backoff: the delay before the next attempt, from the attempt that just failed and one random draw.

Every backoff is a value with `delay_ms(attempt, u)`: stateless, defined for every integer (below 1 counts as 1),
never negative, never over its cap, never over ten years. `u` in [0, 1) is the draw; the caller brings it, so a rule
can be tested without luck.

Jitter turns a delay d into an interval, and `u` is mapped linearly on it:

    None        [d, d]                      "0..20%"  [d, 1.2 d]
    "±25%"      [0.75 d, 1.25 d]            0.5       [0.5 d, 1.5 d], the same as "±50%"
    "full"      [0, d]                      "equal"   [d/2, d]

A hard cap (the default) cuts the interval at the cap; it does not gather the draws beyond it on the cap, so the
draws stay evenly spread and a crowd of retries does not come back in one instant.
Source of "full", "equal" and decorrelated: "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, runtime_checkable

from redrive.core.units import MAX_DELAY_MS, Duration, Millis, duration_ms, round_half_up
from redrive.errors import ConfigurationError


@runtime_checkable
class Backoff(Protocol):
    """The rule that says how long to wait. A team's own class with this one method is as good as ours."""

    def delay_ms(self, attempt: int, u: float) -> Millis:
        """Milliseconds to wait after attempt number `attempt` (1, 2, …) failed. `u` in [0, 1) is the random draw."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """A delay d may become anything in [low * d, high * d]."""

    low: float
    high: float


JitterSpec: TypeAlias = "Jitter | str | float | None"
"""What a user may write: None, "0..20%", "±25%", "full", "equal", or a proportion from 0 to 1."""

NO_JITTER: Final = Jitter(low=1.0, high=1.0)
_NAMED: Final = {"none": NO_JITTER, "full": Jitter(low=0.0, high=1.0), "equal": Jitter(low=0.5, high=1.0)}

MAX_JITTER_PERCENT: Final = 1_000
"""An additive jitter beyond ten times the delay is a typing mistake."""

_NUMBER: Final = r"(\d{1,9}(?:\.\d{1,9})?)"
_ADDITIVE: Final = re.compile(rf"{_NUMBER}\s*\.\.\s*{_NUMBER}\s*%", re.ASCII)
_SYMMETRIC: Final = re.compile(rf"(?:±|\+-|\+/-)\s*{_NUMBER}\s*%", re.ASCII)


def parse_jitter(spec: JitterSpec, *, field: str = "jitter") -> Jitter:
    """A user's jitter as a value. Raises `ConfigurationError` naming `field` for anything else."""
    match spec:
        case None:
            return NO_JITTER
        case Jitter():
            return _checked(spec, spec, field)
        case str():
            return _checked(_jitter_of_text(spec.strip().lower()), spec, field)
        case int() | float() if not isinstance(spec, bool) and 0 <= spec <= 1:
            return Jitter(low=1.0 - spec, high=1.0 + spec)
        case _:
            return _checked(None, spec, field)


def _jitter_of_text(text: str) -> Jitter | None:
    if text in _NAMED:
        return _NAMED[text]
    if found := _ADDITIVE.fullmatch(text):
        return Jitter(low=1 + float(found[1]) / 100, high=1 + float(found[2]) / 100)
    if found := _SYMMETRIC.fullmatch(text):
        return Jitter(low=1 - float(found[1]) / 100, high=1 + float(found[1]) / 100)
    return None


def _checked(jitter: Jitter | None, spec: JitterSpec, field: str) -> Jitter:
    if jitter is not None and 0 <= jitter.low <= jitter.high <= 1 + MAX_JITTER_PERCENT / 100:
        return jitter
    raise ConfigurationError(
        f"{field} is {spec!r}, which is not a jitter.",
        hint='Write None, "0..20%", "±25%", "full", "equal", or a proportion between 0 and 1.',
    )


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """The same delay after every attempt.

    >>> Fixed("5s").delay_ms(3, 0.5)
    5000
    """

    base_ms: Millis
    jitter: Jitter

    def __init__(self, delay: Duration, jitter: JitterSpec = None) -> None:
        _set(self, base_ms=duration_ms(delay, field="Fixed.delay"), jitter=parse_jitter(jitter, field="Fixed.jitter"))

    def delay_ms(self, attempt: int, u: float) -> Millis:
        """`delay`, spread by the jitter."""
        del attempt
        return _spread(self.base_ms, self.jitter, u, limit_ms=MAX_DELAY_MS)


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """`base * factor ** (attempt - 1)`, at most `cap`.

    `cap` is hard: no delay is ever longer. With `cap_before_jitter=True` it bounds the delay before the jitter, so
    that with a cap of 60 s and "±25%" a capped delay lies between 45 and 75 s. Raises `ConfigurationError` naming
    the field for a factor below 1 or not finite, a negative base, a cap below the base.

    >>> [Exponential("1s", cap="5s").delay_ms(attempt, 0.0) for attempt in (1, 2, 3, 4, 1_000_000)]
    [1000, 2000, 4000, 5000, 5000]
    """

    base_ms: Millis
    factor: float
    cap_ms: Millis | None
    jitter: Jitter
    cap_before_jitter: bool

    def __init__(
        self,
        base: Duration,
        factor: float = 2,
        cap: Duration | None = None,
        *,
        jitter: JitterSpec = None,
        cap_before_jitter: bool = False,
    ) -> None:
        base_ms = duration_ms(base, field="Exponential.base")
        _set(
            self,
            base_ms=base_ms,
            factor=_checked_factor(factor),
            cap_ms=_checked_cap(cap, base_ms, "Exponential"),
            jitter=parse_jitter(jitter, field="Exponential.jitter"),
            cap_before_jitter=cap_before_jitter,
        )

    def delay_ms(self, attempt: int, u: float) -> Millis:
        """The delay after `attempt`, in constant time at any attempt number."""
        cap = MAX_DELAY_MS if self.cap_ms is None else self.cap_ms
        raw = _power(self.base_ms, self.factor, exponent=attempt - 1, ceiling=cap)
        return _spread(raw, self.jitter, u, limit_ms=MAX_DELAY_MS if self.cap_before_jitter else cap)


@dataclass(frozen=True, slots=True, init=False)
class Tiers:
    """A list of delays, one per attempt; after the last, the last.

    >>> [Tiers("30s", "5m", "30m").delay_ms(attempt, 0.0) for attempt in (1, 2, 3, 4)]
    [30000, 300000, 1800000, 1800000]
    """

    delays_ms: tuple[Millis, ...]
    jitter: Jitter

    def __init__(self, *delays: Duration, jitter: JitterSpec = None) -> None:
        if not delays:
            raise ConfigurationError("Tiers.delays is empty: give at least one delay.")
        _set(
            self,
            delays_ms=tuple(duration_ms(delay, field=f"Tiers.delays[{at}]") for at, delay in enumerate(delays)),
            jitter=parse_jitter(jitter, field="Tiers.jitter"),
        )

    def delay_ms(self, attempt: int, u: float) -> Millis:
        """The delay of this attempt's tier."""
        tier = self.delays_ms[min(max(attempt, 1), len(self.delays_ms)) - 1]
        return _spread(tier, self.jitter, u, limit_ms=MAX_DELAY_MS)


@dataclass(frozen=True, slots=True, init=False)
class Decorrelated:
    """Decorrelated jitter without memory: uniform on [base, 3 * expected previous delay], cut at `cap`.

    The original draws from [base, 3 * previous delay], which needs the previous delay stored with each message.
    Here its expectation stands in for it. Uncapped that is m(0) = base, m(n) = (base + 3 m(n-1)) / 2, in closed form
    m(n) = base * (2 * 1.5**n - 1); so the mean of every attempt is the original's, the first interval too, and any
    attempt is defined from `u` alone.

    >>> [Decorrelated("1s", cap="60s").delay_ms(attempt, 0.0) for attempt in (1, 5)]
    [1000, 1000]
    """

    base_ms: Millis
    cap_ms: Millis

    def __init__(self, base: Duration, cap: Duration) -> None:
        base_ms = duration_ms(base, field="Decorrelated.base")
        _set(self, base_ms=base_ms, cap_ms=_checked_cap(cap, base_ms, "Decorrelated"))

    def delay_ms(self, attempt: int, u: float) -> Millis:
        """The delay after `attempt`."""
        # The ceiling only keeps the power finite: three times it less the base is over any cap still.
        grown = _power(2 * self.base_ms, 1.5, exponent=attempt - 1, ceiling=3 * MAX_DELAY_MS)
        high = min(float(self.cap_ms), 3 * (grown - self.base_ms))
        return _within(float(self.base_ms), max(high, self.base_ms), u)


def _set(value: object, **fields: object) -> None:
    """Fill a frozen value from its own constructor."""
    for name, content in fields.items():
        object.__setattr__(value, name, content)


def _checked_factor(factor: object) -> float:
    if isinstance(factor, int | float) and not isinstance(factor, bool) and 1 <= factor <= _LARGEST_FACTOR:
        return factor
    raise ConfigurationError(f"Exponential.factor is {factor!r}: it must be a finite number, 1 or more.")


def _checked_cap(cap: Duration | None, base_ms: Millis, owner: str) -> Millis | None:
    if cap is None:
        return None
    cap_ms = duration_ms(cap, field=f"{owner}.cap")
    if cap_ms < base_ms:
        raise ConfigurationError(f"{owner}.cap is {cap!r}, less than the base of {base_ms} ms.")
    return cap_ms


def _power(base: float, factor: float, *, exponent: int, ceiling: float) -> float:
    """min(ceiling, base * factor ** exponent) without overflow and without a loop."""
    if base == 0 or exponent <= 0 or factor == 1:
        return min(float(base), ceiling)
    # Compared as logarithms first: the power itself overflows from about 2 ** 1024 on. The 1 absorbs rounding.
    if min(exponent, _LARGEST_EXACT) * math.log(factor) > math.log(max(ceiling, 1) / base) + 1:
        return float(ceiling)
    return min(float(ceiling), base * float(factor) ** exponent)


_LARGEST_EXACT: Final = 2**53
_LARGEST_FACTOR: Final = math.nextafter(math.inf, 0)


def _spread(delay: float, jitter: Jitter, u: float, *, limit_ms: Millis) -> Millis:
    d = min(float(delay), float(limit_ms))
    return _within(d * jitter.low, d * jitter.high, u, limit_ms=limit_ms)


def _within(low: float, high: float, u: float, *, limit_ms: Millis = MAX_DELAY_MS) -> Millis:
    """The draw mapped on [low, min(high, limit)], rounded half up to whole milliseconds."""
    assert 0 <= u <= 1, f"the draw must be in [0, 1), got {u!r}"
    top = min(high, float(limit_ms))
    bottom = min(low, top)
    return min(round_half_up(bottom + u * (top - bottom)), limit_ms)
