"""Throttle: how many messages one consumer may take now, by its rate and its breaker. Core does the arithmetic."""

from __future__ import annotations

import random
from typing import Final

from redrive.core.policy import flow
from redrive.core.policy.decide import WORKER_LOST
from redrive.core.policy.failure import Failure
from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.runtime.consumer import Consumer
from redrive.runtime.events import Events

NOT_AN_OUTAGE: Final = frozenset({WORKER_LOST})
"""Transient failures that say nothing about the other side."""


class Throttle:
    """The latest bucket and breaker of one consumer in this worker."""

    def __init__(self, consumer: Consumer, clock: Clock, events: Events) -> None:
        self._queue = consumer.queue
        self._policy = consumer.breaker
        self._clock = clock
        self._events = events
        self._bucket = None if consumer.rate is None else flow.full_bucket(consumer.rate, clock.now())
        self._breaker = flow.CLOSED

    def grant(self, wanted: int) -> int:
        """How many of `wanted` may be taken now; what is not used must be given back."""
        now = self._clock.now()
        allowed = flow.allowed(self._breaker, now)
        granted = wanted if allowed is None else min(wanted, allowed)
        if granted and self._bucket is not None:
            self._bucket, granted = flow.take(self._bucket, granted, now)
        if granted and allowed is not None:
            self._change(flow.probing(self._breaker))
        return granted

    def give_back(self, granted: int, used: int) -> None:
        """`granted` were allowed, `used` of them came."""
        if self._bucket is not None and used < granted:
            self._bucket = flow.give_back(self._bucket, granted - used)
        if used == 0:
            self.abandoned()

    def wait_ms(self) -> Millis | None:
        """How long until something may be taken; None where only the end of a probe decides."""
        now = self._clock.now()
        if self._breaker.state is flow.BreakerState.HALF_OPEN:
            return None
        waits = [0 if self._bucket is None else flow.wait_ms(self._bucket, now)]
        if self._breaker.probe_at is not None:
            waits.append(self._breaker.probe_at - now)
        return max(waits)

    def succeeded(self) -> None:
        """A handler succeeded."""
        if self._breaker is not flow.CLOSED:
            self._change(flow.succeeded(self._breaker))

    def failed(self, failure: Failure | None) -> None:
        """A handler did not succeed; a transient failure counts, anything else answers nothing."""
        if self._policy is None or failure is None or not failure.is_retryable or failure.code in NOT_AN_OUTAGE:
            self.abandoned()
            return
        self._change(flow.failed(self._breaker, self._policy, now=self._clock.now(), u=random.random()))  # noqa: S311

    def abandoned(self) -> None:
        """A delivery ended without telling whether the other side works."""
        if self._breaker.state is flow.BreakerState.HALF_OPEN:
            self._change(flow.abandoned(self._breaker, self._clock.now()))

    def _change(self, after: flow.Breaker) -> None:
        before, self._breaker = self._breaker, after
        if before.state is not after.state and flow.BreakerState.CLOSED in {before.state, after.state}:
            self._events.emit("breaker.changed", queue=self._queue, state=str(after.state), until=after.probe_at)
