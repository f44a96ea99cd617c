"""Where a message goes from an exchange: for one key, for the keys of one message, or for every key of a pattern.

Walks direct, fanout, topic and headers exchanges, the default exchange, exchange-to-exchange bindings and alternate
exchanges. What depends on headers, or on an exchange type nobody here knows, is said to be undecided, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from redrive.core.topology.model import Binding, Exchange, Topology
from redrive.core.topology.verify.effective import Policies
from redrive.core.topology.verify.patterns import (
    EVERY,
    STRANGER,
    Pattern,
    TooComplexError,
    Wild,
    first_key,
    is_literal,
    literal,
    matches,
    overlap,
    shown,
    topic,
)

Keys: TypeAlias = tuple[Pattern, ...]
"""The keys of one message: its routing key, then those of its CC header."""

DEFAULT: Final = ""
_BUILT_IN: Final = {
    "amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers",
    "amq.match": "headers", "amq.rabbitmq.trace": "topic",
}  # fmt: skip
_ONE_OF: Final = frozenset({"x-consistent-hash", "x-random", "x-modulus-hash", "x-recent-history"})
"""Plugin types that give each message to a bound queue, whatever its key."""


class QueueId(NamedTuple):
    """A queue within its virtual host."""

    vhost: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A binding as the walk sees it. `pattern` None: what it matches cannot be decided from keys."""

    pattern: Pattern | None
    destination: str
    to_exchange: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where messages with these keys go. `queues`: all that may get one. `lost`: a key that no queue gets, None where
    every key finds one. `missing`: the exchange that is not there. `undecided`: why `queues` and `lost` are not sure;
    `is_complex`: only for want of time.
    """

    queues: frozenset[QueueId] = frozenset()
    lost: str | None = None
    missing: str | None = None
    undecided: str | None = None
    is_complex: bool = False

    @property
    def is_sure(self) -> bool:
        """Every message finds a queue."""
        return self.lost is None and self.missing is None and self.undecided is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """What a walk has found so far: its sets grow."""

    queues: set[QueueId]
    undecided: set[str]
    missing: set[str]


class Router:
    """The exchanges and bindings of a topology, ready to be walked. `dangling`: bindings from or to what is not
    there.
    """

    def __init__(self, topology: Topology, policies: Policies) -> None:
        self._names: dict[str, set[str]] = {}
        for queue in topology.queues:
            self._names.setdefault(queue.vhost, set()).add(queue.name)
        self._types: dict[tuple[str, str], str] = {}
        self._alternates: dict[tuple[str, str], str] = {}
        for exchange in topology.exchanges:
            self._types[exchange.vhost, exchange.name] = _routing_type(exchange)
            other = policies.alternate_of(exchange)
            if isinstance(other, str):
                self._alternates[exchange.vhost, exchange.name] = other
        self._bound: dict[tuple[str, str], list[Bound]] = {}
        self._exact: dict[tuple[str, str], dict[Pattern, list[Bound]]] = {}
        self.dangling: list[Binding] = []
        self._memo: dict[tuple[str, str, Keys], Route] = {}
        self._overlaps: dict[tuple[Pattern, Pattern], bool] = {}
        for binding in topology.bindings:
            self._bind(binding)

    def _bind(self, binding: Binding) -> None:
        to_exchange = binding.destination_type == "exchange"
        there = (
            self.exists(binding.vhost, binding.destination)
            if to_exchange
            else binding.destination in self._names.get(binding.vhost, ())
        )
        if not there or not self.exists(binding.vhost, binding.source):
            self.dangling.append(binding)
            return
        if binding.source == DEFAULT:
            return
        pattern = _pattern_of(binding, self.type_of(binding.vhost, binding.source))
        bound = Bound(pattern=pattern, destination=binding.destination, to_exchange=to_exchange)
        place = (binding.vhost, binding.source)
        self._bound.setdefault(place, []).append(bound)
        if pattern is not None and is_literal(pattern):
            self._exact.setdefault(place, {}).setdefault(pattern, []).append(bound)

    def exists(self, vhost: str, exchange: str) -> bool:
        """Declared, built in, or the default exchange."""
        return exchange == DEFAULT or exchange in _BUILT_IN or (vhost, exchange) in self._types

    def type_of(self, vhost: str, exchange: str) -> str:
        """How it routes: direct, fanout, topic, headers, one-of, or a type that cannot be walked."""
        return self._types.get((vhost, exchange)) or _BUILT_IN.get(exchange, "direct")

    def bound(self, vhost: str, exchange: str) -> list[Bound]:
        """Its bindings (none for the default exchange, which needs none)."""
        return self._bound.get((vhost, exchange), [])

    def alternate(self, vhost: str, exchange: str) -> str | None:
        """Its alternate exchange, there or not."""
        return self._alternates.get((vhost, exchange))

    def route(self, vhost: str, exchange: str, keys: Keys) -> Route:
        """Where messages with these keys go. Several keys are those of one message: any of them may find a queue."""
        known = self._memo.get((vhost, exchange, keys))
        if known is None:
            known = self._memo[vhost, exchange, keys] = self._route(vhost, exchange, keys)
        return known

    def _route(self, vhost: str, exchange: str, keys: Keys) -> Route:
        if not self.exists(vhost, exchange):
            return Route(missing=exchange, lost=shown(keys[0]))
        if exchange == DEFAULT:
            return self._by_name(vhost, keys)
        if all(is_literal(key) for key in keys):
            return self._of_one_message(vhost, exchange, keys)
        return self._of_pattern(vhost, exchange, next(key for key in keys if not is_literal(key)))

    def _by_name(self, vhost: str, keys: Keys) -> Route:
        names = self._names.get(vhost, set())
        if all(is_literal(key) for key in keys):
            told = [name for key in keys if (name := shown(key)) in names]
            return Route(queues=frozenset(QueueId(vhost, name) for name in told), lost=None if told else shown(keys[0]))
        some = [name for name in names if any(overlap(key, literal(name)) for key in keys)]
        return Route(queues=frozenset(QueueId(vhost, name) for name in some), lost=_sample(keys[0]))

    def _of_one_message(self, vhost: str, exchange: str, keys: Keys) -> Route:
        found = self._reach(vhost, exchange, lambda place: self._matching(place, keys))
        return _told(found, lost=None if found.queues else shown(keys[0]))

    def _matching(self, place: tuple[str, str], keys: Keys) -> Iterator[Bound]:
        exact = self._exact.get(place, {})
        for key in dict.fromkeys(keys):
            yield from exact.get(key, ())
        if len(exact) and self.type_of(*place) == "direct":
            return
        for bound in self._bound.get(place, ()):
            if bound.pattern is None or (
                not is_literal(bound.pattern) and any(_fits(bound.pattern, key) for key in keys)
            ):
                yield bound

    def _of_pattern(self, vhost: str, exchange: str, pattern: Pattern) -> Route:
        """Every key of a pattern, through everything that can be reached from the exchange."""
        places = list(self._closure(vhost, exchange))
        bounds = [bound for place in places for bound in self._bound.get(place, ())]
        try:
            fitting = [
                each.pattern for each in bounds if each.pattern is not None and self._overlap(pattern, each.pattern)
            ]
            may = self._reach(
                vhost,
                exchange,
                lambda place: (
                    each
                    for each in self._bound.get(place, ())
                    if each.pattern is None or self._overlap(pattern, each.pattern)
                ),
                alternates=True,
            )
            if any(
                each.pattern in (EVERY, pattern) and not each.to_exchange for each in self._bound.get(places[0], ())
            ):
                return _told(may, lost=None)
            if all(is_literal(each) for each in fitting):
                return _told(may, lost=_sample(pattern))
            lost = self._first_lost((vhost, exchange), pattern, list(dict.fromkeys(fitting)))
        except TooComplexError:
            queues = frozenset(QueueId(vhost, each.destination) for each in bounds if not each.to_exchange)
            return Route(queues=queues, undecided="more bindings than can be walked for every key", is_complex=True)
        return _told(may, lost=lost)

    def _overlap(self, left: Pattern, right: Pattern) -> bool:
        known = self._overlaps.get((left, right))
        if known is None:
            known = self._overlaps[left, right] = overlap(left, right)
        return known

    def _first_lost(self, place: tuple[str, str], pattern: Pattern, patterns: list[Pattern]) -> str | None:
        def is_lost(flags: Iterable[bool]) -> bool:
            inside, *found = flags
            if not inside:
                return False
            hit = {each for each, has in zip(patterns, found, strict=True) if has}
            reached = self._reach(*place, lambda at: (each for each in self._bound.get(at, ()) if each.pattern in hit))
            return not reached.queues

        key = first_key((pattern, *patterns), is_lost)
        return None if key is None else shown(key)

    def _closure(self, vhost: str, exchange: str) -> Iterator[tuple[str, str]]:
        waiting, seen = [exchange], {exchange}
        while waiting:
            name = waiting.pop()
            yield vhost, name
            onward = [bound.destination for bound in self.bound(vhost, name) if bound.to_exchange]
            onward += [other for other in [self.alternate(vhost, name)] if other]
            for other in onward:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)

    def _reach(
        self,
        vhost: str,
        exchange: str,
        matching: Callable[[tuple[str, str]], Iterable[Bound]],
        *,
        alternates: bool = False,
    ) -> _Reached:
        """All queues behind the exchange along the bindings that match; to its alternate where none does, or
        (`alternates`) in any case.
        """
        found = _Reached(queues=set(), undecided=set(), missing=set())
        waiting, seen = [exchange], {exchange}
        while waiting:
            name = waiting.pop()
            if not self.exists(vhost, name):
                found.missing.add(name)
                continue
            bounds = list(matching((vhost, name)))
            kind = self.type_of(vhost, name)
            if any(bound.pattern is None for bound in bounds) or kind.startswith("unknown"):
                found.undecided.add(f'exchange "{name}" ({kind.removeprefix("unknown ")}) does not route by key')
            found.queues.update(QueueId(vhost, bound.destination) for bound in bounds if not bound.to_exchange)
            onward = [bound.destination for bound in bounds if bound.to_exchange]
            other = self.alternate(vhost, name)
            if other and (alternates or not bounds):
                onward.append(other)
            waiting += [each for each in onward if each not in seen]
            seen.update(onward)
        return found


def _told(found: _Reached, *, lost: str | None) -> Route:
    return Route(
        queues=frozenset(found.queues),
        lost=None if found.undecided else lost,
        undecided=min(found.undecided, default=None),
    )


def _fits(pattern: Pattern, key: Pattern) -> bool:
    first = pattern[0] if pattern else None
    if isinstance(first, str) and (not key or first != key[0]):
        return False
    return matches(pattern, key)


def _sample(pattern: Pattern) -> str:
    return shown(tuple(STRANGER if isinstance(token, Wild) else token for token in pattern))


def _routing_type(exchange: Exchange) -> str:
    kind = exchange.type
    if kind == "x-delayed-message":
        kind = str(exchange.arguments.get("x-delayed-type", "direct"))
    if kind in ("direct", "fanout", "topic", "headers"):
        return kind
    return "one-of" if kind in _ONE_OF else f"unknown type {kind}"


def _pattern_of(binding: Binding, kind: str) -> Pattern | None:
    if kind == "direct":
        return literal(binding.routing_key)
    if kind == "topic":
        return topic(binding.routing_key)
    if kind in ("fanout", "one-of"):
        return EVERY
    conditions = [name for name in binding.arguments if name != "x-match"]
    is_any = str(binding.arguments.get("x-match", "all")).startswith("any")
    return EVERY if kind == "headers" and not conditions and not is_any else None
