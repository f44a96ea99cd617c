"""Deliveries and returns as they come off the wire, unread."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.brokers.rabbitmq.headers import Arrived, from_wire


@dataclass(slots=True, eq=False)
class Pushed:
    """One delivery. `route`: exchange and routing key; `header`: flags and values."""

    tag: int
    redelivered: bool
    route: tuple[str, str]
    header: bytes
    body: bytes
    arrived: Arrived | None = None

    def read(self) -> Arrived:
        """What its bytes say."""
        if self.arrived is None:
            exchange, routing_key = self.route
            self.arrived = from_wire(self.header, self.body, exchange=exchange, routing_key=routing_key)
        return self.arrived


@dataclass(slots=True, eq=False)
class Returned:
    """A published message that no queue took: the broker's code and words, where it was sent, its content header."""

    code: int
    text: str
    route: tuple[str, str]
    header: bytes
