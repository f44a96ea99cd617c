"""Exchanges for brokers that have none: an app with a topology runs on the embedded broker too.

The copies of one message share its id. Whoever publishes them hands them to the broker in one batch; on the embedded
file that is one transaction, so either every bound queue has the message or none has.
"""

from __future__ import annotations

from dataclasses import replace

from redrive.core.ports import Outgoing
from redrive.core.topology.model import DEFAULT_VHOST, Topology
from redrive.core.topology.verify.effective import Policies
from redrive.core.topology.verify.patterns import literal
from redrive.core.topology.verify.routing import Router
from redrive.errors import QueueNotFoundError


class Exchanges:
    """The exchanges of a topology."""

    def __init__(self, topology: Topology) -> None:
        self._router = Router(topology, Policies(topology))

    def routed(self, outgoing: Outgoing) -> list[Outgoing]:
        """One message for every bound queue, which also carries where it was first published to.

        Raises `QueueNotFoundError` where no queue is bound for this routing key, or the exchange is not there.
        """
        key = outgoing.queue
        route = self._router.route(DEFAULT_VHOST, outgoing.exchange, (literal(key),))
        if not route.queues:
            raise QueueNotFoundError(
                f'No queue is bound to the exchange "{outgoing.exchange}" for the routing key "{key}". '
                "Nothing was published."
            )
        properties = replace(outgoing.message.properties, routing_key=key, exchange=outgoing.exchange)
        message = replace(outgoing.message, properties=properties)
        return [
            replace(outgoing, queue=queue, exchange="", message=message)
            for queue in sorted(each.name for each in route.queues)
        ]
