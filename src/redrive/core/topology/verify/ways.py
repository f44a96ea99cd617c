"""The ways of messages: cycles of dead-lettering, and where the retry of one consumer comes back to.

Nodes are (queue, keys): the same queue sends messages of different keys different ways. All walks are loops with a
set of what was seen; no chain is too long and no graph too dense for them, and `MANY_STEPS` bounds the work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from redrive.core.topology.verify.patterns import is_literal
from redrive.core.topology.verify.routing import DEFAULT, Keys, QueueId
from redrive.core.topology.verify.situation import Cause, Role, Situation
from redrive.core.topology.verify.wording import named

MANY_STEPS: Final = 1_000_000


class Node(NamedTuple):
    """A queue and the keys with which a message came to it."""

    queue: QueueId
    keys: Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One step of dead-lettering. `is_sure`: it does not depend on a key nobody knows."""

    target: Node
    exchange: str
    is_sure: bool


def nodes(situation: Situation) -> Iterator[Node]:
    """Every queue with all keys messages come to it with."""
    for queue, known in situation.keys.items():
        yield from (Node(queue, keys) for keys in sorted(known, key=str))


def hops(situation: Situation, node: Node) -> list[Hop]:
    """Where a message goes that dies at this node; nowhere that can be followed, where it goes to whatever queue its
    publisher named.
    """
    onward = situation.onward(node.queue, node.keys)
    if onward is None:
        return []
    keys, route = onward
    exchange = situation.settings[node.queue].dead_letter_exchange or DEFAULT
    sure = is_sure(situation, node)
    if exchange == DEFAULT and not sure:
        return []
    return [
        Hop(target=Node(target, situation.arrival(target, exchange, keys)), exchange=exchange, is_sure=sure)
        for target in sorted(route.queues)
    ]


def is_sure(situation: Situation, node: Node) -> bool:
    """Where a message goes that dies here does not depend on a key nobody knows."""
    setting = situation.settings[node.queue]
    is_known = setting.dead_letter_key is not None or all(is_literal(key) for key in node.keys)
    return is_known or situation.router.type_of(node.queue.vhost, setting.dead_letter_exchange or DEFAULT) == "fanout"


def shown_cycle(situation: Situation, cycle: Iterable[Node], cause: Callable[[QueueId], str]) -> tuple[str, ...]:
    """The path of a cycle: queue, cause, exchange, queue, …, the first queue again."""
    around = list(cycle)
    path: list[str] = []
    for node in around:
        exchange = situation.settings[node.queue].dead_letter_exchange or DEFAULT
        path += [node.queue.name, f"({cause(node.queue)})", named(exchange)]
    return (*path, around[0].queue.name)


def cycles(edges: Mapping[Node, list[Node]]) -> list[list[Node]]:
    """One shortest cycle of each strongly connected part of a graph (a part without one has none)."""
    found = []
    for part in _parts(edges):
        inside = set(part)
        begin = min(part, key=str)
        if len(part) > 1 or begin in edges.get(begin, ()):
            found.append(_around(edges, begin, inside))
    return found


def _around(edges: Mapping[Node, list[Node]], begin: Node, inside: set[Node]) -> list[Node]:
    """The shortest way from a node back to itself, within its part."""
    before: dict[Node, Node] = {}
    waiting = deque([begin])
    while waiting:
        node = waiting.popleft()
        for after in edges.get(node, ()):
            if after == begin:
                way = [node]
                while way[-1] != begin:
                    way.append(before[way[-1]])
                return way[::-1]
            if after in inside and after not in before:
                before[after] = node
                waiting.append(after)
    return [begin]


def _parts(edges: Mapping[Node, list[Node]]) -> list[list[Node]]:
    """Strongly connected parts: forward for the order of leaving, then backward; without recursion."""
    order: list[Node] = []
    seen: set[Node] = set()
    for root in edges:
        if root in seen:
            continue
        seen.add(root)
        trail = [(root, iter(edges[root]))]
        while trail:
            node, rest = trail[-1]
            after = next((each for each in rest if each not in seen), None)
            if after is None:
                order.append(node)
                trail.pop()
            else:
                seen.add(after)
                trail.append((after, iter(edges.get(after, ()))))
    return _collected(order, _reversed(edges))


def _collected(order: list[Node], back: Mapping[Node, list[Node]]) -> list[list[Node]]:
    parts: list[list[Node]] = []
    taken: set[Node] = set()
    for root in reversed(order):
        if root in taken:
            continue
        taken.add(root)
        part, waiting = [], [root]
        while waiting:
            node = waiting.pop()
            part.append(node)
            fresh = [each for each in back.get(node, ()) if each not in taken]
            taken.update(fresh)
            waiting += fresh
        parts.append(part)
    return parts


def _reversed(edges: Mapping[Node, list[Node]]) -> dict[Node, list[Node]]:
    back: dict[Node, list[Node]] = {}
    for node, after in edges.items():
        for each in after:
            back.setdefault(each, []).append(node)
    return back


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """Where a message ends up after its wait: consumed queues, each with the path to it, and the waiting queues it
    went through. `last`: of each consumed queue the node it came from. `is_whole`: everything was walked.
    """

    arrivals: Mapping[QueueId, tuple[str, ...]]
    waits: tuple[QueueId, ...]
    last: Mapping[QueueId, Node]
    is_sure: bool
    is_whole: bool


Entry: TypeAlias = tuple[Node, tuple[str, ...]]
"""A node, and the path that led there."""


class Walk:
    """Follows messages, and remembers what it has seen of the graph; all its walks together take `MANY_STEPS`."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self._hops: dict[Node, list[Hop]] = {}
        self._left = MANY_STEPS

    def hops(self, node: Node) -> list[Hop]:
        """As `hops`."""
        known = self._hops.get(node)
        if known is None:
            known = self._hops[node] = hops(self.situation, node)
        return known

    def after_waiting(self, begin: Iterable[Entry]) -> Return:
        """Follow messages from these nodes through waiting queues to consumed ones."""
        roles = self.situation.roles
        trail: dict[Node, tuple[Node | None, tuple[str, ...]]] = {}
        last: dict[QueueId, tuple[Node, Hop]] = {}
        waiting: deque[Node] = deque()
        for node, path in begin:
            if node not in trail and roles.get(node.queue) is Role.WAITING:
                trail[node] = (None, path)
                waiting.append(node)
        sure = True
        while waiting and self._left > 0:
            node = waiting.popleft()
            for hop in self.hops(node):
                self._left -= 1
                sure = sure and hop.is_sure
                target = hop.target
                if roles[target.queue] is Role.CONSUMED:
                    last.setdefault(target.queue, (node, hop))
                elif target not in trail and roles[target.queue] is Role.WAITING:
                    trail[target] = (node, _hop(node, hop))
                    waiting.append(target)
        return Return(
            arrivals={
                queue: (*_back(trail, node), *_hop(node, hop), queue.name) for queue, (node, hop) in last.items()
            },
            waits=tuple(dict.fromkeys(node.queue for node in trail)),
            last={queue: node for queue, (node, _) in last.items()},
            is_sure=sure,
            is_whole=not waiting,
        )


def _hop(node: Node, hop: Hop) -> tuple[str, ...]:
    return (node.queue.name, f"({Cause.EXPIRED})", named(hop.exchange))


def _back(trail: Mapping[Node, tuple[Node | None, tuple[str, ...]]], node: Node) -> tuple[str, ...]:
    """The path to a node, from where the walk began."""
    parts: list[tuple[str, ...]] = []
    at: Node | None = node
    while at is not None:
        at, part = trail[at]
        parts.append(part)
    return tuple(name for part in reversed(parts) for name in part)
