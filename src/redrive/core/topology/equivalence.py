"""Whether what is there is what would be declared, by the broker's own rule.

Measured on 3.10.8 and 4.0.5: a declaration is compared with the queue or exchange of that name by the arguments the
broker knows for the type, present or absent; numbers by value, whatever their width; text is no number and a boolean is
neither. Other arguments are not looked at. A queue without a type is of the virtual host's default type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redrive.core.topology.model import Arguments, Exchange, Queue, QueueType

TYPE: Final = "x-queue-type"

_EVERY: Final = frozenset({"x-max-length-bytes", "x-queue-leader-locator"})
_KEPT_IN_ORDER: Final = _EVERY | {
    "x-message-ttl", "x-expires", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length", "x-overflow",
    "x-single-active-consumer",
}  # fmt: skip
COMPARED: Final[Mapping[str, frozenset[str]]] = {
    QueueType.CLASSIC: _KEPT_IN_ORDER | {"x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"},
    QueueType.QUORUM: _KEPT_IN_ORDER
    | {"x-dead-letter-strategy", "x-delivery-limit", "x-quorum-initial-group-size"}
    | {"x-max-in-memory-length", "x-max-in-memory-bytes"},
    QueueType.STREAM: _EVERY | {"x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"},
}
"""Arguments the broker compares, by the type of the queue that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting that is not as wanted. None: absent."""

    setting: str
    have: Any
    want: Any

    def __str__(self) -> str:
        return f"{self.setting}: have {shown(self.have)}, want {shown(self.want)}"


def queue_differences(want: Queue, have: Queue, *, default_type: str = QueueType.CLASSIC) -> tuple[Difference, ...]:
    """Empty: declaring `want` is accepted where `have` is. `default_type`: of the virtual host."""
    return tuple(_queue_differences(want, have, default_type))


def _queue_differences(want: Queue, have: Queue, default_type: str) -> Iterator[Difference]:
    kinds = [str(queue.arguments.get(TYPE, default_type)) for queue in (have, want)]
    if kinds[0] != kinds[1]:
        yield Difference(setting=TYPE, have=kinds[0], want=kinds[1])
    yield from _flags(want, have, ("durable", "auto_delete"))
    known = COMPARED.get(kinds[0], frozenset()) | COMPARED.get(kinds[1], frozenset())
    yield from _arguments(want.arguments, have.arguments, known)


def exchange_differences(want: Exchange, have: Exchange) -> tuple[Difference, ...]:
    """Empty: declaring `want` is accepted where `have` is."""
    known = frozenset({"alternate-exchange", "x-delayed-type"})
    return (
        *_flags(want, have, ("type", "durable", "auto_delete", "internal")),
        *_arguments(want.arguments, have.arguments, known),
    )


def _flags(want: Queue | Exchange, have: Queue | Exchange, names: tuple[str, ...]) -> Iterator[Difference]:
    for name in names:
        told = Difference(setting=name, have=getattr(have, name), want=getattr(want, name))
        if told.have != told.want:
            yield told


def _arguments(want: Arguments, have: Arguments, known: frozenset[str]) -> Iterator[Difference]:
    for name in sorted(known & (want.keys() | have.keys())):
        if not is_same(want.get(name), have.get(name)):
            yield Difference(setting=name, have=have.get(name), want=want.get(name))


def is_same(left: Any, right: Any) -> bool:
    """Equal as AMQP values: kinds count, widths do not."""
    match left, right:
        case (bool(), _) | (_, bool()):
            return left is right
        case Mapping(), Mapping():
            return left.keys() == right.keys() and all(is_same(left[name], right[name]) for name in left)
        case ((list() | tuple()), (list() | tuple())):
            return len(left) == len(right) and all(map(is_same, left, right))
        case (int(), float()) | (float(), int()):
            return False
        case _:
            return bool(left == right)


def frozen(value: Any) -> Any:
    """The same for values that `is_same`, different for others, and hashable."""
    match value:
        case Mapping():
            return ("table", frozenset((name, frozen(each)) for name, each in value.items()))
        case list() | tuple():
            return ("list", tuple(map(frozen, value)))
        case _:
            return (type(value).__name__, value)


MAX_SHOWN_DEPTH: Final = 20


def shown(value: Any, *, depth: int = 0) -> str:
    """A value of an argument, for a person; what lies too deep in it is left out."""
    match value:
        case Mapping() | list() | tuple() if depth > MAX_SHOWN_DEPTH:
            return "…"
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
        case Mapping():
            return (
                "{" + ", ".join(f"{name}: {shown(each, depth=depth + 1)}" for name, each in sorted(value.items())) + "}"
            )
        case list() | tuple():
            return f"[{', '.join(shown(each, depth=depth + 1) for each in value)}]"
        case _:
            return str(value)
