"""What is in force on a queue: its arguments, the one policy that applies, the operator policy, and the version.

Of ordinary policies at most one applies to a queue, the one of the highest priority among those whose pattern and type
match; so does at most one operator policy. An argument beats a policy, but of lengths, times and limits the smaller
value counts, and on a quorum queue the overflow of a policy wins. A policy that holds a single key the queue's type
does not know applies to no queue of that type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from redrive.core.topology.fit import NEVER_REACHED
from redrive.core.topology.model import Exchange, Policy, Queue, QueueType, Topology

Version: TypeAlias = tuple[int, ...]

KEYS: Final = (
    "message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "dead-letter-exchange",
    "dead-letter-routing-key", "dead-letter-strategy", "delivery-limit",
)  # fmt: skip
NUMBERS: Final = frozenset({"message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"})
DEFAULT_LIMIT: Final = 20
"""The delivery limit of a quorum queue that says nothing, from RabbitMQ 4.0 on."""

_STREAM_KEYS: Final = frozenset({"max-age", "stream-max-segment-size-bytes", "initial-cluster-size"})
_UNKNOWN_KEYS: Final[Mapping[QueueType, frozenset[str]]] = {
    QueueType.CLASSIC: _STREAM_KEYS | {"queue-leader-locator", "delivery-limit", "dead-letter-strategy"},
    QueueType.QUORUM: _STREAM_KEYS
    | {"max-priority", "queue-mode", "ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown"}
    | {"ha-promote-on-failure", "queue-master-locator"},
    QueueType.STREAM: frozenset(
        {"expires", "message-ttl", "dead-letter-exchange", "dead-letter-routing-key", "max-length", "overflow"}
        | {"max-priority", "queue-mode", "delivery-limit", "dead-letter-strategy", "ha-mode"}
    ),
}
_APPLY_TO: Final[Mapping[str, frozenset[QueueType]]] = {
    "all": frozenset(QueueType),
    "queues": frozenset(QueueType),
    "classic_queues": frozenset({QueueType.CLASSIC}),
    "quorum_queues": frozenset({QueueType.QUORUM}),
    "streams": frozenset({QueueType.STREAM}),
}
_REPEATED_GROUP: Final = re.compile(r"[*+}][^()]*\)\s*[*+{]")
"""A repetition inside a repeated group: matching it may take for ever, so it is not tried."""


def parse_version(text: str | None) -> Version | None:
    """(4, 0, 5) of "4.0.5", "v4.0.5-rc.1"; None where it says no version."""
    found = re.match(r"v?(\d{1,6})(?:\.(\d{1,6}))?(?:\.(\d{1,6}))?", text or "")
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place that says a value. `kind`: argument, policy, operator policy, or default."""

    kind: str
    value: Any
    name: str = ""

    def __str__(self) -> str:
        named = f"{self.kind} {self.name}" if self.name else self.kind
        return f"{named} says {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What is in force on one queue, and who said it (`sources`, by key without "x-"). `ties`: ordinary policies of
    equal priority of which the broker picks any; `shadowed`: matching policies that do not apply, strongest first;
    `unfit`: policies that would match but hold a key this type does not know. `odd`: values that are none.
    """

    type: QueueType | None
    ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    strategy: str = "at-most-once"
    delivery_limit: int | None = None
    policy: str | None = None
    ties: tuple[Policy, ...] = ()
    shadowed: tuple[Policy, ...] = ()
    unfit: tuple[Policy, ...] = ()
    sources: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    odd: tuple[str, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """Its length has a limit."""
        return self.max_length is not None or self.max_bytes is not None

    def decided_by(self, key: str) -> Source | None:
        """Who says the value that counts."""
        said = self.sources.get(key, ())
        if not said or key not in NUMBERS:
            return said[0] if said else None
        return next((source for source in said if source.value == _number(key, said)), said[0])


class Policies:
    """The policies of a topology, with their patterns compiled once. `broken`: those whose pattern is none, or could
    take for ever to match; they are taken as matching nothing.
    """

    def __init__(self, topology: Topology) -> None:
        self.broken: list[Policy] = []
        self._ordinary = self._compiled(topology.policies)
        self._operator = self._compiled(topology.operator_policies)

    def _compiled(self, policies: Iterable[Policy]) -> dict[str, list[tuple[re.Pattern[str], Policy]]]:
        compiled: dict[str, list[tuple[re.Pattern[str], Policy]]] = {}
        for policy in sorted(policies, key=lambda each: -whole(each.priority, 0)):
            pattern = _pattern(policy.pattern)
            if pattern is None or not isinstance(policy.definition, Mapping):
                self.broken.append(policy)
            else:
                compiled.setdefault(policy.vhost, []).append((pattern, policy))
        return compiled

    def of_queue(self, queue: Queue, kind: QueueType, *, operator: bool = False) -> list[Policy]:
        """Those that match by pattern and `apply_to`, strongest first."""
        known = self._operator if operator else self._ordinary
        return [
            policy
            for pattern, policy in known.get(queue.vhost, ())
            if kind in _APPLY_TO.get(policy.apply_to, ()) and pattern.search(queue.name)
        ]

    def alternate_of(self, exchange: Exchange) -> Any:
        """The alternate exchange in force: the argument, else of the one policy that applies."""
        if "alternate-exchange" in exchange.arguments:
            return exchange.arguments["alternate-exchange"]
        for pattern, policy in self._ordinary.get(exchange.vhost, ()):
            if policy.apply_to in ("all", "exchanges") and pattern.search(exchange.name):
                return policy.definition.get("alternate-exchange")
        return None


def _pattern(text: object) -> re.Pattern[str] | None:
    if not isinstance(text, str) or len(text) > 1_000 or _REPEATED_GROUP.search(text):  # noqa: PLR2004
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return None


def whole(value: object, default: int) -> int:
    """A whole number, or the default."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def type_of(queue: Queue) -> QueueType | None:
    """None: a type this verifier does not know."""
    told = queue.arguments.get("x-queue-type", QueueType.CLASSIC)
    return next((kind for kind in QueueType if kind == told), None)


def effective(queue: Queue, policies: Policies, version: Version | None) -> Effective:
    """What is in force on this queue. Without a version the newest broker is assumed: its defaults lose more."""
    kind = type_of(queue)
    if kind is None:
        return Effective(type=None, odd=(f"x-queue-type is {queue.arguments.get('x-queue-type')!r}",))
    matching = policies.of_queue(queue, kind)
    fit = [policy for policy in matching if not _UNKNOWN_KEYS[kind] & policy.definition.keys()]
    operators = [
        policy
        for policy in policies.of_queue(queue, kind, operator=True)
        if not _UNKNOWN_KEYS[kind] & policy.definition.keys()
    ]
    top = whole(fit[0].priority, 0) if fit else 0
    ties = tuple(policy for policy in fit if whole(policy.priority, 0) == top)
    odd: list[str] = []
    sources = {key: told for key in KEYS if (told := _told(key, (queue, kind), (fit[:1], operators[:1]), odd=odd))}
    if kind is QueueType.QUORUM and "delivery-limit" not in sources and (version is None or version >= (4, 0)):
        sources["delivery-limit"] = (Source(kind="default", value=DEFAULT_LIMIT),)
    return Effective(
        type=kind,
        policy=fit[0].name if fit else None,
        ties=ties if len(ties) > 1 and not _agree(ties) else (),
        shadowed=tuple(fit[1:]),
        unfit=tuple(policy for policy in matching if policy not in fit),
        sources=sources,
        odd=tuple(odd),
        **_values(sources),
    )


def _agree(policies: Iterable[Policy]) -> bool:
    """Of equal priority but saying the same of what matters here: which one applies makes no difference."""
    said = [{key: policy.definition.get(key) for key in KEYS} for policy in policies]
    return all(each == said[0] for each in said)


def _told(
    key: str, queue: tuple[Queue, QueueType], policies: tuple[list[Policy], list[Policy]], *, odd: list[str]
) -> tuple[Source, ...]:
    """Who says something valid of this key, the strongest first."""
    (subject, kind), (ordinary, operators) = queue, policies
    said = []
    if f"x-{key}" in subject.arguments:
        said.append(Source(kind="argument", value=subject.arguments[f"x-{key}"], name=f"x-{key}"))
    by_policy = [
        Source(kind=label, value=policy.definition[key], name=f'"{policy.name}"')
        for label, found in (("operator policy", operators), ("policy", ordinary))
        for policy in found
        if key in policy.definition
    ]
    said = by_policy + said if key == "overflow" and kind is QueueType.QUORUM else said + by_policy
    odd += [f"{source.name or key}: {source.value!r}" for source in said if not _is_valid(key, source.value)]
    return tuple(source for source in said if _is_valid(key, source.value))


def _is_valid(key: str, value: object) -> bool:
    if key in NUMBERS:
        return isinstance(value, int) and not isinstance(value, bool) and (value >= 0 or key == "delivery-limit")
    return isinstance(value, str)


def _number(key: str, said: tuple[Source, ...]) -> int:
    values = [whole(source.value, 0) for source in said]
    return max(values) if key == "delivery-limit" and min(values) < 0 else min(values)


_FIELDS: Final[Mapping[str, str]] = {
    "message-ttl": "ttl_ms", "expires": "expires_ms", "max-length": "max_length", "max-length-bytes": "max_bytes",
    "overflow": "overflow", "dead-letter-exchange": "dead_letter_exchange", "dead-letter-strategy": "strategy",
    "dead-letter-routing-key": "dead_letter_key", "delivery-limit": "delivery_limit",
}  # fmt: skip


def _values(sources: Mapping[str, tuple[Source, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        _FIELDS[key]: _number(key, said) if key in NUMBERS else said[0].value for key, said in sources.items()
    }
    limit = found.get("delivery_limit")
    if limit is not None and not 0 <= limit < NEVER_REACHED:
        found["delivery_limit"] = None
    return found
