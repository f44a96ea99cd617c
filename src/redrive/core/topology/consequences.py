"""What a step of a plan does to messages, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from redrive.core.topology.equivalence import TYPE, Difference, shown
from redrive.core.topology.fit import LIMIT, LIMITED_SINCE, UNLIMITED, major
from redrive.core.topology.model import Binding, Exchange, Queue, QueueType, ttl_of
from redrive.core.topology.verify.effective import DEFAULT_LIMIT

BY_POLICY: Final = frozenset(
    {
        "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange",
        "x-dead-letter-routing-key", "x-dead-letter-strategy", LIMIT,
    }
)  # fmt: skip
"""Arguments a policy can say in their place, without declaring the queue anew."""


def of_new_exchange(exchange: Exchange) -> str:
    """What publishing to it does from now on."""
    other = exchange.arguments.get("alternate-exchange")
    if other is not None:
        return f'What no binding matches goes on to the exchange "{other}".'
    return "Publishing to it works from now on; what no binding matches is returned to those who ask for it, else gone."


def of_new_queue(queue: Queue) -> str:
    """Where its messages go."""
    ttl_ms = ttl_of(queue)
    target = _target(queue)
    if target is None:
        kept = "until they are consumed" if ttl_ms is None else f"for {ttl_ms} ms, then they are gone"
        return f"Keeps its messages {kept}; what is rejected in it is gone."
    if ttl_ms is None:
        return f"Keeps its messages until they are consumed; what is rejected goes to {target}."
    return f"Its messages wait {ttl_ms} ms and go on to {target}."


def _target(queue: Queue) -> str | None:
    exchange, key = (queue.arguments.get(f"x-dead-letter-{what}") for what in ("exchange", "routing-key"))
    if exchange is None:
        return None
    if exchange == "":
        return "the queue they were sent to" if key is None else f'the queue "{key}"'
    return f'the exchange "{exchange}"' + ("" if key is None else f' with "{key}"')


def of_new_binding(binding: Binding) -> str:
    """What its destination gets from now on."""
    return (
        f'From now on the {binding.destination_type} "{binding.destination}" gets {_matched(binding)}; '
        "what was published before is not sent again."
    )


def of_extra_binding(binding: Binding, *, is_wanted: bool) -> str:
    """`is_wanted`: its destination belongs to the topology."""
    gets = f'the {binding.destination_type} "{binding.destination}" also gets {_matched(binding)}'
    if is_wanted:
        return f"Left alone: {gets}. Unbind it by hand if that is not meant; messages that are in stay in."
    return f"Left alone: {gets}; it does not belong to this topology."


def _matched(binding: Binding) -> str:
    said = [f'with "{binding.routing_key}"'] if binding.routing_key else []
    said += [f"with {shown(binding.arguments)}"] if binding.arguments else []
    return f'what is published to "{binding.source}"' + "".join(f" {each}" for each in said)


def of_changed_exchange() -> str:
    """Of any setting of it."""
    return (
        "The broker refuses it (406) and leaves the exchange as it is. To change it, delete it and apply again while "
        "nobody publishes: what is published in between finds no exchange, and all its bindings go with it."
    )


def of_changed_queue(have: Queue, differences: tuple[Difference, ...], *, version: str | None) -> str:
    """What is true of its messages until it is migrated."""
    told = list(_until_then(have, differences, version))
    return (
        "The broker refuses it (406) and leaves the queue and its messages as they are; a migration moves them. "
        f"Until then {'; '.join(told)}."
    )


def _until_then(have: Queue, differences: tuple[Difference, ...], version: str | None) -> Iterator[str]:
    of_type = any(each.setting == TYPE for each in differences)
    if of_type:
        yield _type(have)
    for difference in differences:
        if difference.setting == TYPE or (of_type and difference.setting in _OF_QUORUM):
            continue
        if difference.setting == LIMIT:
            yield _limit(difference.have, version)
        else:
            say = _UNTIL.get(difference.setting)
            yield f"{difference.setting} stays {shown(difference.have)}" if say is None else say(difference.have)


_OF_QUORUM: Final = frozenset({LIMIT, "x-dead-letter-strategy", "x-overflow"})
"""They go with the type: what that means is said once."""


def _type(have: Queue) -> str:
    kind = str(have.arguments.get(TYPE, QueueType.CLASSIC))
    if kind == QueueType.CLASSIC and "x-dead-letter-exchange" in have.arguments:
        return "a crash of the broker can lose what it moves out of this classic queue"
    return f"it is a {kind} queue"


def _limit(have: Any, version: str | None) -> str:
    limited = version is None or major(version) >= LIMITED_SINCE
    if have == UNLIMITED and not limited:
        return "a message is given up at its first return (this version takes -1 for less than none)"
    if have == UNLIMITED or (have is None and not limited):
        return "no message is given up for its returns"
    return f"a message is given up after {DEFAULT_LIMIT if have is None else have} returns"


_UNTIL: Final[Mapping[str, Callable[[Any], str]]] = {
    "x-message-ttl": lambda have: (
        "messages stay in it until somebody consumes them" if have is None else f"messages wait {have} ms in it"
    ),
    "x-expires": lambda have: (
        "it is never deleted by itself"
        if have is None
        else f"the broker deletes it with all its messages after {have} ms without use"
    ),
    "x-dead-letter-exchange": lambda have: (
        "what is rejected or expires in it is gone"
        if have is None
        else f"what is rejected or expires in it goes to the exchange {shown(have)}"
    ),
    "x-dead-letter-routing-key": lambda have: (
        "what leaves it keeps its own routing key" if have is None else f"what leaves it does so with {shown(have)}"
    ),
    "x-dead-letter-strategy": lambda have: f"what leaves it does so {'at-most-once' if have is None else have}",
    "x-overflow": lambda have: (
        f"it does {'drop-head' if have is None else have} when full (at-least-once needs reject-publish)"
    ),
    "x-max-length": lambda have: "its length has no limit" if have is None else f"it holds at most {have} messages",
    "durable": lambda have: "it survives a restart" if have else "a restart of the broker deletes it",
}


def by_policy(differences: tuple[Difference, ...]) -> tuple[str, ...]:
    """The way without a migration, where there is one: a policy can add what no argument says, and change nothing."""
    added = {each.setting: each.want for each in differences if each.have is None and each.setting in BY_POLICY}
    if len(added) < len(differences):
        return ()
    said = {name.removeprefix("x-"): value for name, value in added.items()}
    return (f"Without a migration: a policy that says {shown(said)}.",)
