"""Leases: renewed by a thread of its own, so that a blocked event loop loses none.

A delivery in hand has a lease; while it is in hand the keeper renews it every third of the lease. Failure by failure:

- The store refuses the renewal (another worker has the message by now): the handler is stopped, its result refused.
- The renewal raises (the store is away): tried again at the next round; once the lease's own time is over without a
  successful renewal the delivery counts as lost, exactly as if it had been refused.
- The renewal hangs for longer than the lease: the event loop's own round (`expire`) finds the lease over.
- The loop hangs: the renewals go on; a handler in a process is killed from here, one on the loop is cancelled as soon
  as the loop comes back.
- A handler that ignores being stopped after its timeout: its lease is renewed no more, so that the message becomes
  another worker's; its slot stays taken until it returns.

Weak spot: a thread that holds the interpreter lock for longer than a lease stops the keeper too. The fencing token
still refuses the late result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Final

from redrive.core.delivery import DeliveryState
from redrive.core.ports import Clock, Ledger
from redrive.core.units import Millis
from redrive.runtime.delivery import CancelReason, Delivery

RENEWALS_PER_LEASE: Final = 3
MAX_RENEW_BATCH: Final = 500
"""Leases in one call, so that one write stays short."""

JOIN_S: Final = 2.0
"""How long `close` waits for a renewal that is under way."""


class LeaseGroup:
    """The deliveries of one consumer, as the keeper sees them. `in_hand` belongs to the pipeline."""

    def __init__(
        self,
        ledger: Ledger,
        in_hand: Mapping[int, Delivery],
        *,
        lease_ms: Millis,
        stop: Callable[[Delivery, CancelReason], None],
    ) -> None:
        self.ledger = ledger
        self.in_hand = in_hand
        self.lease_ms = lease_ms
        self.stop = stop

    @property
    def interval_ms(self) -> float:
        """Between two rounds of renewal."""
        return self.lease_ms / RENEWALS_PER_LEASE


class LeaseKeeper:
    """Renews what is in hand. `start` once; `close` as often as you like."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: tuple[LeaseGroup, ...] = ()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, group: LeaseGroup) -> None:
        """Keep this group's leases from the next round on."""
        self._groups = (*self._groups, group)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._keep, name="redrive-leases", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop renewing."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)

    def _keep(self) -> None:
        interval_ms = min((group.interval_ms for group in self._groups), default=1_000.0)
        # From start to start of a round: a slow store must not stretch the time between two renewals.
        next_at = self._clock.monotonic_ms() + interval_ms
        while not self._closing.wait(max(0.0, next_at - self._clock.monotonic_ms()) / 1_000):
            next_at = self._clock.monotonic_ms() + interval_ms
            self.renew()
            self.expire()

    def renew(self) -> None:
        """One round: renew every lease of which less than three quarters are left."""
        for group in self._groups:
            now = self._clock.now()
            due = [d for d in tuple(group.in_hand.values()) if _wants_renewal(d, group, now)]
            due.sort(key=lambda d: d._lease_ms)
            for lease_ms, same in groupby(due, key=lambda d: d._lease_ms or group.lease_ms):
                for part in _parts(list(same)):
                    self._renew_part(group, part, lease_ms)

    def _renew_part(self, group: LeaseGroup, part: list[Delivery], lease_ms: Millis) -> None:
        asked_at = self._clock.now()
        try:
            held = group.ledger.renew([d._taken for d in part], lease_ms=lease_ms)
        except Exception:  # noqa: BLE001 - whatever it is, `expire` ends the lease in time; the pipeline reports outages
            return
        for delivery, is_held in zip(part, held, strict=True):
            if is_held:
                delivery._lease_until = asked_at + lease_ms
            else:
                _lose(group, delivery)

    def expire(self) -> None:
        """Give up every delivery whose lease is over without a renewal."""
        for group in self._groups:
            now = self._clock.now()
            for delivery in tuple(group.in_hand.values()):
                if delivery._lease_until <= now:
                    _lose(group, delivery)


def _wants_renewal(delivery: Delivery, group: LeaseGroup, now: int) -> bool:
    if delivery._state is DeliveryState.LOST or delivery._committed:
        return False
    if delivery._cancel_reason is CancelReason.TIMEOUT:
        return False
    lease_ms = delivery._lease_ms or group.lease_ms
    return delivery._lease_until - now < lease_ms * 0.75


def _lose(group: LeaseGroup, delivery: Delivery) -> None:
    if delivery._is_open:
        group.stop(delivery, CancelReason.LEASE_LOST)


def _parts(deliveries: list[Delivery]) -> Iterable[list[Delivery]]:
    for start in range(0, len(deliveries), MAX_RENEW_BATCH):
        yield deliveries[start : start + MAX_RENEW_BATCH]
