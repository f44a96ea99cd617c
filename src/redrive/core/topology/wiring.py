"""How redrive retries and dead-letters on one consumer queue: what a broker adapter carries out.

Three ways back after a failed attempt:

- `RejectRetry`: reject without requeue; the broker's own dead-lettering takes the message to a queue with a TTL and
  from there back. One fixed delay. A reject carries no confirm: on classic queues a broker that is killed can lose it.
- `TierRetry`: publish the copy, confirmed, to the tier whose delay is the next longer one; then acknowledge.
- `LadderRetry`: publish the copy, confirmed, to the delay ladder (any delay); then acknowledge.

And two for a message that is given up: publish it, confirmed, to `DeadLetterRoute` and acknowledge (the rule), or
`by_reject`, where the topology prescribes the broker's own dead-lettering.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from redrive.core.units import Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectRetry:
    """Back after `delay_ms` through the queue's own dead-letter exchange."""

    delay_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One fixed delay: publish with `routing_key` to the exchange of the `TierRetry`."""

    delay_ms: Millis
    routing_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRetry:
    """Back through one of `tiers` (shortest first). Headers, where named: `count_header` holds how many retries there
    were, `routing_key_header` and `exchange_header` where the message was first published.
    """

    exchange: str
    tiers: tuple[Tier, ...]
    count_header: str | None = None
    routing_key_header: str | None = None
    exchange_header: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRetry:
    """Back through the delay ladder (`redrive.core.topology.ladder`), after any delay."""


RetryWiring: TypeAlias = RejectRetry | TierRetry | LadderRetry


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRoute:
    """Where a dead message goes. `headers`: names of headers on it, by what they hold: `queue`, `status_code`,
    `error`, `retry_count`, `reason_code`, `reason_text`, `attempts`; one whose value is unknown is left out.
    """

    exchange: str
    routing_key: str
    by_reject: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """One consumer queue. `dead_letter_queue`: where a dead message lies in the end, for those who look for it.
    `waits_locally`: requeues that are due within seconds are held in hand and rejected back (no copy is made).
    """

    queue: str
    retry: RetryWiring
    dead_letter: DeadLetterRoute
    dead_letter_queue: str
    waits_locally: bool = False
