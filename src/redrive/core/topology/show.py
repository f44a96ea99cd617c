"""A topology for people: rows of a table, and a picture as Mermaid text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from redrive.core.topology.equivalence import TYPE, shown
from redrive.core.topology.ladder import PREFIX, has_ladder, is_level
from redrive.core.topology.model import Binding, Exchange, Queue, QueueType, Topology, ttl_of
from redrive.core.topology.wiring import RejectRetry, RetryWiring, TierRetry
from redrive.core.units import Millis

_ROUTE: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-message-ttl", TYPE)
LADDER: Final = f"{PREFIX}*"
"""What all levels of the delay ladder are shown as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `what`: its type, `to`: where messages go from it, `settings`: what else is said."""

    kind: str
    name: str
    what: str
    to: str = ""
    settings: str = ""


def rows(topology: Topology) -> tuple[Row, ...]:
    """Exchanges, queues, and how redrive retries on its queues. The levels of the delay ladder are one row."""
    return (*_exchange_rows(topology), *_queue_rows(topology), *_wiring_rows(topology))


def _exchange_rows(topology: Topology) -> Iterator[Row]:
    for exchange in sorted(topology.exchanges, key=lambda each: (each.vhost, each.name)):
        if is_level(exchange.name):
            continue
        bound = [each for each in topology.bindings if (each.vhost, each.source) == (exchange.vhost, exchange.name)]
        said = [f"{name}={shown(value)}" for name, value in sorted(exchange.arguments.items())]
        yield Row(
            kind="exchange",
            name=exchange.name,
            what=exchange.type,
            to=", ".join(sorted(_bound(each) for each in bound)),
            settings=" ".join([*_kept(exchange), *said]),
        )


def _bound(binding: Binding) -> str:
    with_key = f" [{binding.routing_key}]" if binding.routing_key else ""
    with_arguments = f" {shown(binding.arguments)}" if binding.arguments else ""
    return f"{binding.destination}{with_key}{with_arguments}"


def _queue_rows(topology: Topology) -> Iterator[Row]:
    for queue in sorted(topology.queues, key=lambda each: (each.vhost, each.name)):
        if is_level(queue.name):
            continue
        said = [f"{name}={shown(value)}" for name, value in sorted(queue.arguments.items()) if name not in _ROUTE]
        yield Row(
            kind="queue",
            name=queue.name,
            what=str(queue.arguments.get(TYPE, QueueType.CLASSIC)),
            to=_leaves_to(queue),
            settings=" ".join([*_kept(queue), *said]),
        )
    if has_ladder(topology):
        levels = sum(1 for queue in topology.queues if is_level(queue.name))
        yield Row(
            kind="queue",
            name=LADDER,
            what=QueueType.QUORUM,
            to="the queue they were sent to",
            settings=f"{levels} levels, 100ms to 7d",
        )


def _kept(entity: Exchange | Queue) -> list[str]:
    transient = [] if entity.durable else ["transient"]
    return [*transient, "auto-delete"] if entity.auto_delete else transient


def _leaves_to(queue: Queue) -> str:
    exchange, key = queue.arguments.get("x-dead-letter-exchange"), queue.arguments.get("x-dead-letter-routing-key")
    if exchange is None:
        return ""
    target = "the queue they were sent to" if key is None else str(key)
    where = target if exchange == "" else f"{exchange}" + ("" if key is None else f" [{key}]")
    ttl_ms = ttl_of(queue)
    return f"rejected: {where}" if ttl_ms is None else f"after {in_words(ttl_ms)}: {where}"


def _wiring_rows(topology: Topology) -> Iterator[Row]:
    for wiring in sorted(topology.wirings, key=lambda each: each.queue):
        given_up = "rejected" if wiring.dead_letter.by_reject else "published"
        yield Row(
            kind="consumer",
            name=wiring.queue,
            what=_retries(wiring.retry),
            to=f"{wiring.dead_letter_queue} (dead letters, {given_up})",
            settings="waits locally" if wiring.waits_locally else "",
        )


def _retries(retry: RetryWiring) -> str:
    match retry:
        case RejectRetry():
            return f"retry after {in_words(retry.delay_ms)}, by reject"
        case TierRetry():
            return f"retry after {', '.join(in_words(tier.delay_ms) for tier in retry.tiers)}, by publish"
        case _:
            return "retry after any delay, by publish"


def in_words(delay_ms: Millis) -> str:
    """A delay in the largest unit that holds it whole: 90s, 2m, 1500ms."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if delay_ms and delay_ms % size == 0:
            return f"{delay_ms // size}{unit}"
    return f"{delay_ms}ms"


def mermaid(topology: Topology) -> str:
    """A flowchart: exchanges are hexagons, queues cylinders; solid arrows are bindings, dotted ones what the broker
    does with a message by itself, thick ones what redrive publishes. The same topology gives the same text.
    """
    return "\n".join(_Picture(topology).lines()) + "\n"


class _Picture:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._nodes: dict[tuple[str, str, str], str] = {}
        self._shapes: list[str] = []
        self._arrows: list[str] = []

    def lines(self) -> list[str]:
        for exchange in sorted(self._topology.exchanges, key=lambda each: (each.vhost, each.name)):
            self._draw_exchange(exchange)
        for queue in sorted(self._topology.queues, key=lambda each: (each.vhost, each.name)):
            self._draw_queue(queue)
        for binding in sorted(self._topology.bindings, key=lambda each: (each.vhost, each.source, _bound(each))):
            self._draw_binding(binding)
        for exchange in sorted(self._topology.exchanges, key=lambda each: (each.vhost, each.name)):
            other = exchange.arguments.get("alternate-exchange")
            if other is not None:
                self._arrow(
                    self._exchange(exchange.vhost, exchange.name),
                    "unmatched",
                    self._exchange(exchange.vhost, str(other)),
                )
        for queue in sorted(self._topology.queues, key=lambda each: (each.vhost, each.name)):
            self._draw_dead_letters(queue)
        self._draw_wirings()
        return ["flowchart LR", *(f"  {line}" for line in (*self._shapes, *self._arrows))]

    def _node(self, kind: str, *, vhost: str, name: str, label: str) -> str:
        known = self._nodes.get((kind, vhost, name))
        if known is not None:
            return known
        node = self._nodes[kind, vhost, name] = f"{kind}{len(self._nodes)}"
        left, right = ('{{"', '"}}') if kind == "e" else ('[("', '")]')
        self._shapes.append(f"{node}{left}{label}{right}")
        return node

    def _exchange(self, vhost: str, name: str, kind: str = "not in the topology") -> str:
        if is_level(name):
            return self._queue(vhost, name)
        title = escaped(name) if name else "default exchange"
        return self._node("e", vhost=vhost, name=name, label=f"{title}<br/>{escaped(kind)}")

    def _queue(self, vhost: str, name: str, kind: str = "not in the topology") -> str:
        if is_level(name):
            return self._node("q", vhost=vhost, name=LADDER, label=f"{escaped(LADDER)}<br/>delay ladder")
        return self._node("q", vhost=vhost, name=name, label=f"{escaped(name)}<br/>{escaped(kind)}")

    def _draw_exchange(self, exchange: Exchange) -> None:
        self._exchange(exchange.vhost, exchange.name, exchange.type)

    def _draw_queue(self, queue: Queue) -> None:
        self._queue(queue.vhost, queue.name, str(queue.arguments.get(TYPE, QueueType.CLASSIC)))

    def _draw_binding(self, binding: Binding) -> None:
        if is_level(binding.source) or not binding.source:
            return
        to_queue = binding.destination_type == "queue"
        target = (self._queue if to_queue else self._exchange)(binding.vhost, binding.destination)
        label = binding.routing_key or (shown(binding.arguments) if binding.arguments else "")
        self._arrow(self._exchange(binding.vhost, binding.source), label, target, line="-->")

    def _draw_dead_letters(self, queue: Queue) -> None:
        exchange, key = queue.arguments.get("x-dead-letter-exchange"), queue.arguments.get("x-dead-letter-routing-key")
        if exchange is None or is_level(queue.name):
            return
        source = self._queue(queue.vhost, queue.name)
        ttl_ms = ttl_of(queue)
        why = "rejected" if ttl_ms is None else f"after {in_words(ttl_ms)}"
        if exchange == "":
            target = None if key is None else self._queue(queue.vhost, str(key))
        else:
            target = self._exchange(queue.vhost, str(exchange))
            why += "" if key is None else f", {key}"
        if target is not None:
            self._arrow(source, why, target)

    def _draw_wirings(self) -> None:
        vhosts = {queue.name: queue.vhost for queue in self._topology.queues}
        for wiring in sorted(self._topology.wirings, key=lambda each: each.queue):
            vhost = vhosts.get(wiring.queue, "/")
            source = self._queue(vhost, wiring.queue)
            route = wiring.dead_letter
            if not route.by_reject:
                by_name = route.exchange == ""
                target = self._queue(vhost, route.routing_key) if by_name else self._exchange(vhost, route.exchange)
                self._arrow(source, "given up", target, line="==>")
            if isinstance(wiring.retry, TierRetry):
                self._arrow(source, "retry", self._exchange(vhost, wiring.retry.exchange), line="==>")

    def _arrow(self, source: str, label: str, target: str, *, line: str = "-.->") -> None:
        told = f'|"{escaped(label)}"|' if label else ""
        self._arrows.append(f"{source} {line}{told} {target}")


_PLAIN: Final = frozenset(" ._-:,/*")


def escaped(text: str) -> str:
    """Text as it can stand in a label: whatever Mermaid could take for its own is written as its code."""
    return "".join(char if char.isalnum() or char in _PLAIN else f"#{ord(char)};" for char in text)
