"""Throttle: how many messages one consumer may take now, by its rate, its breaker, and what the other side told of the
whole lane (nothing before a time; or slower). Core does the arithmetic.
"""

from __future__ import annotations

import random
from typing import Final

from redrive.core.policy import flow, pace
from redrive.core.policy.decide import WORKER_LOST
from redrive.core.policy.failure import Failure, Scope
from redrive.core.ports import Clock
from redrive.core.units import MAX_DELAY_MS, Millis
from redrive.runtime.consumer import Consumer
from redrive.runtime.events import Events

NOT_AN_OUTAGE: Final = frozenset({WORKER_LOST})
"""Transient failures that say nothing about the other side."""


class Throttle:
    """The latest bucket, breaker and pace of one consumer in this worker."""

    def __init__(self, consumer: Consumer, clock: Clock, events: Events, *, shares_rate: bool = False) -> None:
        """`shares_rate`: the broker counts the starts of all workers, so this one need not."""
        self._queue = consumer.queue
        self._policy = consumer.breaker
        self._clock = clock
        self._events = events
        self._bucket = None if consumer.rate is None or shares_rate else flow.full_bucket(consumer.rate, clock.now())
        self._breaker = flow.CLOSED
        self._pace = pace.NO_LIMIT
        self._accepted = 0

    def grant(self, wanted: int) -> int:
        """How many of `wanted` may be taken now; what is not used must be given back."""
        now = self._clock.now()
        allowed = flow.allowed(self._breaker, now)
        granted = wanted if allowed is None else min(wanted, allowed)
        self._pace = pace.sampled(self._pace, self._accepted, now)
        if granted:
            self._pace, granted = pace.take(self._pace, granted, now)
        if granted and self._bucket is not None:
            paced = granted
            self._bucket, granted = flow.take(self._bucket, paced, now)
            self._pace = pace.give_back(self._pace, paced - granted)
        if granted and allowed is not None:
            self._change(flow.probing(self._breaker))
        return granted

    def give_back(self, granted: int, used: int) -> None:
        """`granted` were allowed, `used` of them came."""
        if self._bucket is not None and used < granted:
            self._bucket = flow.give_back(self._bucket, granted - used)
        self._pace = pace.give_back(self._pace, granted - used)
        if used == 0:
            self.abandoned()

    def wait_ms(self) -> Millis | None:
        """How long until something may be taken; None where only the end of a probe decides."""
        now = self._clock.now()
        if self._breaker.state is flow.BreakerState.HALF_OPEN:
            return None
        waits = [pace.wait_ms(self._pace, now), 0 if self._bucket is None else flow.wait_ms(self._bucket, now)]
        if self._breaker.probe_at is not None:
            waits.append(self._breaker.probe_at - now)
        return max(waits)

    def succeeded(self) -> None:
        """A handler succeeded."""
        self._accepted += 1
        if self._breaker is not flow.CLOSED:
            self._change(flow.succeeded(self._breaker))

    def failed(self, failure: Failure | None) -> None:
        """A handler did not succeed; a transient failure counts, anything else answers nothing. What is about the lane
        holds it or slows it down.
        """
        if failure is not None and failure.scope is Scope.LANE:
            self._refused(failure)
            return
        if self._policy is None or failure is None or not failure.is_retryable or failure.code in NOT_AN_OUTAGE:
            self.abandoned()
            return
        self._change(flow.failed(self._breaker, self._policy, now=self._clock.now(), u=random.random()))  # noqa: S311

    def _refused(self, failure: Failure) -> None:
        now, told_ms = self._clock.now(), failure.retry_after_ms
        facts = {"queue": self._queue, "error_code": failure.code, "cause": failure.cause, "error_text": failure.text}
        if told_ms is None:
            before = self._pace.per_s
            self._pace = pace.refused(self._pace, self._accepted, now)
            # A refusal is an answer: what a probe asked for is known.
            self._change(flow.succeeded(self._breaker))
            if self._pace.per_s != before:
                self._events.emit("lane.slowed", **facts, per_s=self._pace.per_s)
            return
        is_news = self._breaker.state is not flow.BreakerState.OPEN
        self._change(flow.held(self._breaker, now + min(told_ms, MAX_DELAY_MS)))
        if is_news:
            self._events.emit("lane.held", **facts, until=self._breaker.probe_at)

    def abandoned(self) -> None:
        """A delivery ended without telling whether the other side works."""
        if self._breaker.state is flow.BreakerState.HALF_OPEN:
            self._change(flow.abandoned(self._breaker, self._clock.now()))

    def _change(self, after: flow.Breaker) -> None:
        before, self._breaker = self._breaker, after
        if before.state is not after.state and flow.BreakerState.CLOSED in {before.state, after.state}:
            self._events.emit("breaker.changed", queue=self._queue, state=str(after.state), until=after.probe_at)
