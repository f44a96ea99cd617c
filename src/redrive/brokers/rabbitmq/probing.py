"""What a queue is declared with, asked over AMQP alone: by what the broker refuses.

A queue that exists refuses a declaration with other arguments, and says which one differs and what it has. Declared
again and again, each time with what was just learnt, it tells all of them. It is asked for passively first, so none is
made by asking. Policies and bindings cannot be asked for over AMQP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from redrive.brokers.rabbitmq.failures import NOT_FOUND, PRECONDITION_FAILED, ChannelLost
from redrive.brokers.rabbitmq.session import Session
from redrive.core.topology.model import Exchange, Queue

MAX_TRIES: Final = 40
"""No type of queue has so many arguments."""

_REFUSED: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for (?:queue|exchange) '.*' in vhost '.*': received (?P<received>.*)"
    r" but current is (?P<current>.*)$",
    re.DOTALL,
)
_VALUE: Final = re.compile(r"^(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$", re.DOTALL)
_FLAGS: Final = ("durable", "auto_delete", "internal", "type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Which setting differs, and what is there; `current` None: nothing is."""

    name: str
    current: Any


def read_refusal(text: str) -> Refusal | None:
    """What the broker's words say; None where they say something else."""
    found = _REFUSED.search(text)
    if found is None:
        return None
    return Refusal(name=found["name"], current=_value(found["current"].strip()))


def _value(text: str) -> Any:
    """`none`, or a value with or without its type."""
    found = _VALUE.match(text)
    if found is None:
        return None
    value, kind = found["value"], found["type"]
    if kind in ("longstr", "shortstr"):
        return value
    if kind == "bool" or (kind is None and value in ("true", "false")):
        return value == "true"
    digits = value.removeprefix("-")
    return int(value) if digits.isascii() and digits.isdigit() else value


async def probe_queue(session: Session, want: Queue) -> Queue | None:
    """The queue as it is, starting from what it is thought to be; None where there is none.

    Raises `ChannelLost` where the broker refuses for another reason.
    """
    if await session.counts(want.name) is None:
        return None
    guess = _Guess(durable=want.durable, auto_delete=want.auto_delete, arguments=dict(want.arguments))
    for _ in range(MAX_TRIES):
        refusal = await _declared_again(session, want.name, guess)
        if refusal is None:
            break
        guess = guess.corrected(refusal)
    return replace(want, durable=guess.durable, auto_delete=guess.auto_delete, arguments=dict(guess.arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guess:
    durable: bool
    auto_delete: bool
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def corrected(self, refusal: Refusal) -> _Guess:
        if refusal.name in ("durable", "auto_delete"):
            told = bool(refusal.current)
            return replace(self, durable=told) if refusal.name == "durable" else replace(self, auto_delete=told)
        others = {name: value for name, value in self.arguments.items() if name != refusal.name}
        if refusal.current is not None:
            others[refusal.name] = refusal.current
        return replace(self, arguments=others)


async def _declared_again(session: Session, name: str, guess: _Guess) -> Refusal | None:
    try:
        async with session.channel() as channel:
            await channel.declare_queue(
                name, durable=guess.durable, auto_delete=guess.auto_delete, arguments=dict(guess.arguments)
            )
    except ChannelLost as lost:
        refusal = read_refusal(lost.text) if lost.code == PRECONDITION_FAILED else None
        if refusal is None:
            raise
        return refusal
    return None


async def probe_exchange(session: Session, want: Exchange) -> Exchange | None:
    """The exchange as it is, or as near to it as the broker's refusal tells (the first difference); None: none."""
    if not await session.has_exchange(want.name):
        return None
    try:
        async with session.channel() as channel:
            await channel.declare_exchange(want)
    except ChannelLost as lost:
        refusal = read_refusal(lost.text) if lost.code == PRECONDITION_FAILED else None
        if refusal is None:
            if lost.code == NOT_FOUND:
                return None
            raise
        if refusal.name in _FLAGS:
            return replace(want, **{refusal.name: refusal.current})
        others = {name: value for name, value in want.arguments.items() if name != refusal.name}
        told = {} if refusal.current is None else {refusal.name: refusal.current}
        return replace(want, arguments={**others, **told})
    return want
