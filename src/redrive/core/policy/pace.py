"""Pace: how fast the other side takes messages, learned from its refusals, as a value and arithmetic on a given now.

Some services refuse what comes too fast and do not tell how fast is too fast. The number they accepted in the second
before a refusal is the best measure there is: from then on a little less is sent. After a calm time in which the pace
was what kept messages waiting, it grows by a little, until the next refusal. So it settles at or below what is allowed,
also where several workers share the limit, or the limit changes.

One worker learns for itself. The caller keeps the latest value, as with a token bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from redrive.core.policy import flow
from redrive.core.policy.flow import Bucket, Rate
from redrive.core.units import Millis, UnixMs

WINDOW_MS: Final[Millis] = 1_000
"""What was accepted is counted over so long; refusals within it are answers to one and the same burst."""

SAMPLE_MS: Final[Millis] = 50
"""Between two samples that are kept."""

MAX_SAMPLES: Final = 2 * WINDOW_MS // SAMPLE_MS

CALM_MS: Final[Millis] = 10_000
"""Without a refusal for so long, the pace grows."""

MARGIN_PERCENT: Final = 90
"""Of what was accepted."""

GROWTH_PERCENT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`bucket`: the learned rate, None before the first refusal. `samples`: (when, how many were accepted in all).
    `refused_at`: the first refusal of the last burst. `grown_at`: when the pace last changed. `is_felt`: something
    waited because of it since then.
    """

    bucket: Bucket | None = None
    samples: tuple[tuple[UnixMs, int], ...] = ()
    refused_at: UnixMs | None = None
    grown_at: UnixMs = 0
    is_felt: bool = False

    @property
    def per_s(self) -> int | None:
        """Messages in a second, None without limit."""
        return None if self.bucket is None else self.bucket.rate.count


NO_LIMIT: Final = Pace()


def sampled(pace: Pace, total: int, now: UnixMs) -> Pace:
    """With a look at how many were accepted in all, now."""
    if pace.samples and now - pace.samples[-1][0] < SAMPLE_MS:
        return pace
    return replace(pace, samples=(*pace.samples, (now, total))[-MAX_SAMPLES:])


def refused(pace: Pace, total: int, now: UnixMs) -> Pace:
    """After a refusal. `total`: how many were accepted in all."""
    accepted = max(1, _accepted(pace, total, now) * MARGIN_PERCENT // 100)
    is_same_burst = pace.refused_at is not None and now - pace.refused_at < WINDOW_MS
    per_s = pace.per_s
    if per_s is not None:
        # A burst is answered piece by piece: its later answers only tell better how much of it was accepted.
        accepted = max(accepted, per_s) if is_same_burst else min(accepted, max(1, per_s - 1))
    refused_at = pace.refused_at if is_same_burst else now
    return replace(pace, bucket=_bucket(pace, accepted, now), refused_at=refused_at, grown_at=now, is_felt=False)


def take(pace: Pace, wanted: int, now: UnixMs) -> tuple[Pace, int]:
    """As many of `wanted` as may go now, and the pace after it."""
    if pace.bucket is None:
        return pace, wanted
    grown = _grown(pace, now)
    assert grown.bucket is not None
    bucket, granted = flow.take(grown.bucket, wanted, now)
    return replace(grown, bucket=bucket, is_felt=grown.is_felt or granted < wanted), granted


def give_back(pace: Pace, count: int) -> Pace:
    """The pace with what was granted and not used."""
    return pace if pace.bucket is None or count < 1 else replace(pace, bucket=flow.give_back(pace.bucket, count))


def wait_ms(pace: Pace, now: UnixMs) -> Millis:
    """How long until one may go."""
    return 0 if pace.bucket is None else flow.wait_ms(pace.bucket, now)


def _accepted(pace: Pace, total: int, now: UnixMs) -> int:
    """In the last `WINDOW_MS`; of a younger pace, since it began."""
    before = [count for at, count in pace.samples if at <= now - WINDOW_MS]
    start = before[-1] if before else pace.samples[0][1] if pace.samples else 0
    return max(0, total - start)


def _grown(pace: Pace, now: UnixMs) -> Pace:
    assert pace.per_s is not None
    if not pace.is_felt or now - pace.grown_at < CALM_MS:
        return pace
    per_s = pace.per_s + max(1, pace.per_s * GROWTH_PERCENT // 100)
    return replace(pace, bucket=_bucket(pace, per_s, now), grown_at=now, is_felt=False)


def _bucket(pace: Pace, per_s: int, now: UnixMs) -> Bucket:
    """One token at most, so that no second sees more than one above the pace; empty after a refusal."""
    rate = Rate(count=per_s, per_ms=1_000)
    level = 0 if pace.bucket is None else min(pace.bucket.level, rate.per_ms)
    return Bucket(rate=rate, burst=1, level=level, at=now)
