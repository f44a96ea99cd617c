"""What is known of the programs that publish to a topology and consume from it: half of the ways to lose a message
are theirs. Everything may be left open (None): then what depends on it is said as information, never as a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Messages somebody publishes: the exchange, the routing key, and the keys in their CC header."""

    exchange: str
    routing_key: str
    cc: tuple[str, ...] = ()
    vhost: str = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """How publishers and consumers behave.

    `strips_deaths`: a copy is published without the broker's `x-death`. `confirms`, `mandatory`, `persistent`: so is
    everything they publish. `bounded_headers`: what they add to headers has a limit far below a frame (131 072 bytes).
    `counts`: consumers count attempts themselves and give up. `requeues`: they hand messages back (basic.nack with
    requeue) to try them again. `prefetch`: unacknowledged messages per consumer, 0 for no limit. `crashes`: a
    message can kill its consumer (None: like anywhere). `per_message_ttl`: messages carry an `expiration`.
    `renews_leases`: a queue with `x-expires` is declared again before each use.
    """

    strips_deaths: bool | None = None
    confirms: bool | None = None
    mandatory: bool | None = None
    persistent: bool | None = None
    bounded_headers: bool | None = None
    counts: bool | None = None
    requeues: bool | None = None
    prefetch: int | None = None
    crashes: bool | None = None
    per_message_ttl: bool | None = None
    renews_leases: bool | None = None


UNKNOWN: Final = Client()
"""Nothing is known: a definitions file alone."""

REDRIVE: Final = Client(
    strips_deaths=True, confirms=True, mandatory=True, persistent=True, bounded_headers=True, counts=True,
    requeues=True, per_message_ttl=False,
)  # fmt: skip
"""How redrive itself publishes and consumes."""
