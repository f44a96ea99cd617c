"""Flow: a token bucket and a sliding window (how fast), and a breaker (whether at all), as values and arithmetic on a
given now.

Bucket and breaker live in one worker; a window is kept where several workers share it. None of them sleeps, and none
knows a task or a lock: the caller keeps the latest value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, TypeAlias

from redrive.core.policy.backoff import Backoff, Exponential
from redrive.core.units import MAX_DELAY_MS, Millis, UnixMs, duration_ms
from redrive.errors import ConfigurationError, TransitionError

# ------------------------------------------------------------------------------------------------ token bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """`count` starts in `per_ms` milliseconds."""

    count: int
    per_ms: Millis

    @property
    def per_s(self) -> float:
        """Starts in a second."""
        return self.count * 1_000 / self.per_ms


RateSpec: TypeAlias = "Rate | str | int | float"
"""What a user may write: "100/min", "0.5/s", "100 per 60 s", "100/60s", or a number per second."""

MAX_RATE_COUNT: Final = 10**9
_RATE: Final = re.compile(r"(\d{1,10}(?:\.\d{1,6})?)\s*(?:/|per)\s*(\d{1,10}(?:\.\d{1,6})?)?\s*([a-z]+)", re.ASCII)
_UNITS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
}


def parse_rate(spec: RateSpec, *, field: str = "rate") -> Rate:
    """A user's rate as a value. Raises `ConfigurationError` naming `field` for anything else, 0 and negative too.

    >>> parse_rate("100 per 60 s") == parse_rate("100/min")
    True
    """
    rate = _rate_of(spec, field)
    if rate is not None and 1 <= rate.count <= MAX_RATE_COUNT and 1 <= rate.per_ms <= MAX_DELAY_MS:
        return rate
    raise ConfigurationError(
        f"{field} is {spec!r}, which is not a rate.",
        hint='Write "100/min", "5/s", "100 per 60 s", or a number per second above 0.',
    )


def _rate_of(spec: RateSpec, field: str) -> Rate | None:
    match spec:
        case Rate():
            return spec
        case str():
            found = _RATE.fullmatch(spec.strip().lower())
            if found is None or found[3] not in _UNITS:
                return None
            count = Fraction(found[1])
            per_ms = duration_ms(f"{found[2] or 1}{_UNITS[found[3]]}", field=field)
            return Rate(count=count.numerator, per_ms=per_ms * count.denominator)
        case int() | float() if not isinstance(spec, bool) and _SLOWEST_PER_S <= spec <= MAX_RATE_COUNT:
            exact = Fraction(spec).limit_denominator(_MAX_PERIOD_S)
            return Rate(count=exact.numerator, per_ms=exact.denominator * 1_000)
        case _:
            return None


_MAX_PERIOD_S: Final = 1_000
_SLOWEST_PER_S: Final = 1 / _MAX_PERIOD_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A token bucket. `level` is in units of 1 / per_ms token, so that every refill is exact whole arithmetic.

    It holds at most `burst` tokens: after a quiet time so many may start at once, and within any one period never
    more than `burst` + `rate.count`.
    """

    rate: Rate
    burst: int
    level: int
    at: UnixMs


def full_bucket(rate: Rate, now: UnixMs, *, burst: int | None = None) -> Bucket:
    """A bucket that is full at `now`. `burst` None: one period's tokens, so that a short queue need not wait."""
    size = rate.count if burst is None else max(1, burst)
    return Bucket(rate=rate, burst=size, level=size * rate.per_ms, at=now)


def refill(bucket: Bucket, now: UnixMs) -> Bucket:
    """The bucket at `now`. A clock that went back adds nothing and takes nothing."""
    elapsed = max(0, now - bucket.at)
    level = min(bucket.burst * bucket.rate.per_ms, bucket.level + elapsed * bucket.rate.count)
    return replace(bucket, level=level, at=now)


def take(bucket: Bucket, wanted: int, now: UnixMs) -> tuple[Bucket, int]:
    """As many of `wanted` tokens as there are at `now`, and the bucket without them."""
    filled = refill(bucket, now)
    granted = max(0, min(wanted, filled.level // filled.rate.per_ms))
    return replace(filled, level=filled.level - granted * filled.rate.per_ms), granted


def give_back(bucket: Bucket, tokens: int) -> Bucket:
    """The bucket with tokens that were taken and not used."""
    full = bucket.burst * bucket.rate.per_ms
    return replace(bucket, level=min(full, bucket.level + tokens * bucket.rate.per_ms))


def wait_ms(bucket: Bucket, now: UnixMs) -> Millis:
    """How long until there is a token; 0 where there is one."""
    missing = bucket.rate.per_ms - refill(bucket, now).level
    return max(0, -(-missing // bucket.rate.count))


# ---------------------------------------------------------------------------------------------- sliding window

WINDOW_SLOTS: Final = 100
"""Slots in one period. One more than a period's is always counted, so a window gives away 2 % of its rate, and a start
that comes a slot later than it was counted still breaks no limit.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Starts counted over a sliding window: never more than `rate.count` in any `rate.per_ms`, whole bursts included.

    `counts`: (slot, starts in it), oldest first; a slot lasts `slot_ms(rate)` from the epoch on.
    """

    rate: Rate
    counts: tuple[tuple[int, int], ...] = ()


def slot_ms(rate: Rate) -> Millis:
    """How long one slot of this rate's window lasts."""
    return -(-rate.per_ms // WINDOW_SLOTS)


def _span(rate: Rate) -> int:
    """Slots before the present one that are counted: those that touch the period, and one more."""
    return -(-rate.per_ms // slot_ms(rate)) + 1


def _slot(window: Window, now: UnixMs) -> int:
    # A clock that went back stays in the last slot: what was counted there is not forgotten earlier.
    present = now // slot_ms(window.rate)
    return max(present, window.counts[-1][0]) if window.counts else present


def slid(window: Window, now: UnixMs) -> Window:
    """The window at `now`, without what lies behind it."""
    first = _slot(window, now) - _span(window.rate)
    return replace(window, counts=tuple(each for each in window.counts if each[0] >= first))


def room(window: Window, now: UnixMs) -> int:
    """How many may start now."""
    return max(0, window.rate.count - sum(count for _, count in slid(window, now).counts))


def started(window: Window, count: int, now: UnixMs) -> Window:
    """The window after `count` more starts now; at most `room`, which the caller has asked."""
    if count < 1:
        return window
    moved, slot = slid(window, now), _slot(window, now)
    before = moved.counts[-1][1] if moved.counts and moved.counts[-1][0] == slot else 0
    earlier = moved.counts[:-1] if before else moved.counts
    return replace(moved, counts=(*earlier, (slot, before + count)))


def free_at(window: Window, now: UnixMs) -> UnixMs:
    """When one more may start: `now` where it may at once."""
    excess = sum(count for _, count in slid(window, now).counts) - window.rate.count
    for slot, count in slid(window, now).counts:
        if excess < 0:
            break
        excess -= count
        if excess < 0:
            return (slot + _span(window.rate) + 1) * slot_ms(window.rate)
    return now


def forgotten_at(window: Window) -> UnixMs:
    """When all of it lies behind: from then on it is as good as a new one."""
    last = window.counts[-1][0] if window.counts else 0
    return (last + _span(window.rate) + 1) * slot_ms(window.rate)


def window_numbers(window: Window) -> list[int]:
    """For a store: the length of a slot, then slots and counts in turn."""
    return [slot_ms(window.rate), *(number for each in window.counts for number in each)]


def window_of(rate: Rate, numbers: Sequence[int]) -> Window:
    """What a store kept, under a rate that may be another one by now: no start is forgotten earlier for that."""
    stored_ms, own_ms = (numbers[0] if numbers else 0), slot_ms(rate)
    if not numbers[1:]:
        return Window(rate=rate)
    counts: dict[int, int] = {}
    last = ((numbers[-2] + 1) * stored_ms - 1) // own_ms
    for slot, count in zip(numbers[1::2], numbers[2::2], strict=True):
        # Time stands at the end of the last slot, though the last start may have been at its beginning: so those before
        # it count as later by as much.
        own = slot if stored_ms == own_ms else min(last, ((slot + 2) * stored_ms - 2) // own_ms)
        counts[own] = counts.get(own, 0) + count
    return Window(rate=rate, counts=tuple(sorted(counts.items())))


# --------------------------------------------------------------------------------------------- the breaker


class BreakerState(StrEnum):
    """Closed: messages flow. Open: none are taken. Half-open: one probe is in hand."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerEvent(StrEnum):
    """What moves a breaker. ABANDON: the probe ended without an answer (shutdown, lost lease, permanent failure).
    HOLD: the other side told that it takes nothing for a while.
    """

    TRIP = "trip"
    PROBE = "probe"
    SUCCEED = "succeed"
    FAIL = "fail"
    ABANDON = "abandon"
    HOLD = "hold"


_S, _E = BreakerState, BreakerEvent
BREAKER_TRANSITIONS: Final[dict[BreakerState, dict[BreakerEvent, BreakerState]]] = {
    _S.CLOSED: {_E.TRIP: _S.OPEN, _E.SUCCEED: _S.CLOSED, _E.FAIL: _S.CLOSED, _E.HOLD: _S.OPEN},
    _S.OPEN: {_E.PROBE: _S.HALF_OPEN, _E.SUCCEED: _S.OPEN, _E.FAIL: _S.OPEN, _E.HOLD: _S.OPEN},
    _S.HALF_OPEN: {_E.SUCCEED: _S.CLOSED, _E.FAIL: _S.OPEN, _E.ABANDON: _S.OPEN, _E.HOLD: _S.OPEN},
}
"""{state: {event: next state}}. While open, results still come from deliveries started before: they change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """Open after `failures` consecutive transient failures; probe after `probe`'s delay, longer each time it fails.

    Raises `ConfigurationError` naming the field.

    >>> BreakerPolicy(failures=50, probe=Exponential("5s", cap="5m")).failures
    50
    """

    failures: int = 20
    probe: Backoff = Exponential("1s", cap="60s", jitter="equal")  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if not _is_count(self.failures):
            raise ConfigurationError(f"breaker.failures is {self.failures!r}: it must be a whole number, 1 or more.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


DEFAULT_BREAKER: Final = BreakerPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """`failures`: consecutive transient ones. `opened`: times it opened since it was last closed. `probe_at`: when
    the next probe may go, None unless open.
    """

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    opened: int = 0
    probe_at: UnixMs | None = None


CLOSED: Final = Breaker()


def allowed(breaker: Breaker, now: UnixMs) -> int | None:
    """How many messages may be taken now: None without limit, 1 for a probe, 0 for none."""
    match breaker.state:
        case BreakerState.CLOSED:
            return None
        case BreakerState.HALF_OPEN:
            return 0
        case BreakerState.OPEN:
            return 1 if breaker.probe_at is None or breaker.probe_at <= now else 0


def probing(breaker: Breaker) -> Breaker:
    """The breaker whose probe was taken. Raises `TransitionError` unless it is open."""
    return Breaker(state=_advance(breaker, BreakerEvent.PROBE), failures=breaker.failures, opened=breaker.opened)


def succeeded(breaker: Breaker) -> Breaker:
    """After a handler succeeded."""
    return breaker if breaker.state is BreakerState.OPEN else CLOSED


def failed(breaker: Breaker, policy: BreakerPolicy, *, now: UnixMs, u: float) -> Breaker:
    """After a transient failure. `u` in [0, 1) is the draw for the time of the next probe."""
    if breaker.state is BreakerState.OPEN:
        return breaker
    failures = breaker.failures + 1
    if breaker.state is BreakerState.CLOSED and failures < policy.failures:
        return replace(breaker, failures=failures)
    opened = breaker.opened + 1
    probe_at = now + min(max(policy.probe.delay_ms(opened, u), 0), MAX_DELAY_MS)
    return Breaker(state=BreakerState.OPEN, failures=failures, opened=opened, probe_at=probe_at)


def held(breaker: Breaker, until: UnixMs) -> Breaker:
    """After the other side told that it takes nothing before `until`; then one probe may go. Of two such answers the
    later time holds, except that a probe's own answer is the newest there is.
    """
    waits = (until, breaker.probe_at or 0) if breaker.state is BreakerState.OPEN else (until,)
    return replace(breaker, state=_advance(breaker, BreakerEvent.HOLD), probe_at=max(waits))


def abandoned(breaker: Breaker, now: UnixMs) -> Breaker:
    """After a probe that gave no answer: another may go at once. Without a probe in hand nothing changes."""
    return (
        replace(breaker, state=BreakerState.OPEN, probe_at=now) if breaker.state is BreakerState.HALF_OPEN else breaker
    )


def _advance(breaker: Breaker, event: BreakerEvent) -> BreakerState:
    after = BREAKER_TRANSITIONS[breaker.state].get(event)
    if after is None:
        raise TransitionError(f"A breaker that is {breaker.state} cannot {event}.")
    return after
