"""What the settings of one queue do to its messages: limits, lengths, leases, strategies, policies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from redrive.core.topology.model import Policy, QueueType
from redrive.core.topology.verify.effective import Effective, Source
from redrive.core.topology.verify.findings import Finding, Severity
from redrive.core.topology.verify.routing import QueueId
from redrive.core.topology.verify.situation import Role, Situation
from redrive.core.topology.verify.wording import named, quoted

_ONLY_QUORUM: Final = ("delivery-limit", "dead-letter-strategy")
_ONLY_CLASSIC: Final = ("max-priority", "queue-mode")
_OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")
_STRATEGIES: Final = ("at-most-once", "at-least-once")
_FIRST_PRIORITIES: Final = (4, 3)
_FIRST_UNLIMITED: Final = (4, 0)


def found(situation: Situation) -> Iterator[Finding]:
    """Everything wrong with the settings of each queue."""
    for queue, setting in situation.settings.items():
        if setting.type is None:
            yield _of("L29", Severity.ERROR, queue, f'The type of queue "{queue.name}" is none: {setting.odd[0]}.')
        elif setting.type is not QueueType.STREAM:
            for rule in _RULES:
                yield from rule(_At(situation, queue, setting))


class _At(NamedTuple):
    """One queue, and what is in force on it."""

    situation: Situation
    queue: QueueId
    setting: Effective


def _of(code: str, severity: Severity, queue: QueueId, *story: str) -> Finding:
    text = "".join(story)
    return Finding(code=code, severity=severity, vhost=queue.vhost, queue=queue.name, story=text, path=(queue.name,))


def _delivery_limit(at: _At) -> Iterator[Finding]:
    situation, queue, setting = at.situation, at.queue, at.setting
    limit = setting.delivery_limit
    if limit is None or setting.dead_letter_exchange is not None or setting.type is not QueueType.QUORUM:
        return
    by = setting.decided_by("delivery-limit")
    is_default = by is not None and by.kind == "default"
    told = "RabbitMQ 4.0 and later set it to 20" if is_default else str(by)
    if situation.roles[queue] is not Role.CONSUMED:
        known = Severity.INFO if is_default and situation.version is None else Severity.WARNING
        yield _of(
            "L1",
            known,
            queue,
            f'Nobody consumes "{queue.name}", but whoever looks into it delivers its messages: the delivery '
            f"limit is {limit} "
            f"({told}), and there is no dead-letter exchange. After {limit + 1} looks a message is gone.",
        )
        return
    sure = Severity.WARNING if is_default and situation.version is None else Severity.ERROR
    yield _of(
        "L1",
        sure,
        queue,
        f'"{queue.name}" has a delivery limit of {limit} ({told}) and no dead-letter exchange: a message that '
        f"is delivered "
        f"{limit + 1} times without an acknowledgement is dropped.",
    )


def _no_limit_before_its_time(at: _At) -> Iterator[Finding]:
    """-1 means "none" from 4.0 on. Before, a quorum queue takes it for a limit that the first return is beyond."""
    situation, queue, setting = at.situation, at.queue, at.setting
    said = [source.value for source in setting.sources.get("delivery-limit", ())]
    if situation.version is None or situation.version >= _FIRST_UNLIMITED or not said or min(said) >= 0:
        return
    fate = "dropped" if setting.dead_letter_exchange is None else "dead-lettered"
    yield _of(
        "L1",
        Severity.ERROR,
        queue,
        f'"{queue.name}" has a delivery limit of {min(said)}, which means none from RabbitMQ 4.0 on only: here '
        f"a message is "
        f"{fate} when it comes back for the first time.",
    )


def _rejects(at: _At) -> Iterator[Finding]:
    situation, queue, setting = at.situation, at.queue, at.setting
    if setting.dead_letter_exchange is None and situation.roles[queue] is Role.CONSUMED:
        declared = situation.queues[queue]
        yield _of(
            "L21",
            Severity.INFO if declared.auto_delete and not declared.durable else Severity.WARNING,
            queue,
            f'"{queue.name}" has no dead-letter exchange: a message its consumer rejects without requeue is dropped.',
        )


def _expiry(at: _At) -> Iterator[Finding]:
    queue, setting = at.queue, at.setting
    if setting.ttl_ms is not None and setting.dead_letter_exchange is None:
        yield _of(
            "L22",
            Severity.WARNING,
            queue,
            f'"{queue.name}" has a message TTL of {setting.ttl_ms} ms ({setting.decided_by("message-ttl")}) and '
            f"no dead-letter "
            "exchange: what lies there so long is dropped.",
        )


def _strategy(at: _At) -> Iterator[Finding]:
    situation, queue, setting = at.situation, at.queue, at.setting
    lettering = situation.dead_lettering.get(queue)
    if lettering is None:
        return
    way = f'"{queue.name}" dead-letters to {named(lettering.exchange)}'
    if setting.type is QueueType.CLASSIC and situation.causes(queue):
        yield _of(
            "L6",
            Severity.WARNING,
            queue,
            f"{way} and is a classic queue: the message goes without a confirm, and a broker killed in the next "
            f"seconds "
            "has lost it.",
        )
    elif setting.type is QueueType.QUORUM and setting.strategy != "at-least-once" and situation.causes(queue):
        yield _of(
            "L4",
            Severity.WARNING,
            queue,
            f"{way} at most once: the message is removed before the target has it, and is lost when the target "
            f"refuses or "
            "the broker is killed.",
        )
    elif setting.type is QueueType.QUORUM and setting.strategy == "at-least-once" and not lettering.is_confirmed:
        yield _of(
            "L5", Severity.WARNING, queue, f"{way} at most once, though at-least-once is asked for: {_why(setting)}"
        )


def _why(setting: Effective) -> str:
    if setting.overflow == "reject-publish":
        return "this broker cannot (it needs RabbitMQ 3.10, before 4.0 with the feature flag stream_queue)."
    by = setting.decided_by("overflow")
    return f"the overflow in force is {setting.overflow} ({by or 'the default'}), it must be reject-publish."


def _length(at: _At) -> Iterator[Finding]:
    situation, queue, setting = at.situation, at.queue, at.setting
    if not setting.is_bounded:
        return
    role = situation.roles[queue]
    limit = f"{setting.max_length} messages" if setting.max_length is not None else f"{setting.max_bytes} bytes"
    by = setting.decided_by("max-length") or setting.decided_by("max-length-bytes")
    if setting.overflow == "reject-publish":
        yield from _full(situation, queue, f"{limit} ({by})")
    elif role is Role.CONSUMED and setting.dead_letter_exchange is None:
        yield _of(
            "L7", Severity.WARNING, queue, f'"{queue.name}" holds {limit} ({by}); the oldest is dropped for a new one.'
        )
    elif role is Role.RESTING:
        yield _of(
            "L7",
            Severity.ERROR,
            queue,
            f'"{queue.name}" keeps messages until a person comes, but no more than {limit} ({by}): for each '
            f"further one the "
            f"oldest is {'dropped' if setting.dead_letter_exchange is None else 'sent on'}.",
        )
    elif role is Role.WAITING:
        yield _of(
            "L7",
            Severity.ERROR,
            queue,
            f'Messages wait in "{queue.name}", but no more than {limit} ({by}): for each further one the oldest '
            f"goes on "
            "before its time.",
        )


def _full(situation: Situation, queue: QueueId, limit: str) -> Iterator[Finding]:
    sources = sorted(name for name, lettering in situation.dead_lettering.items() if queue in lettering.targets)
    losing = [name.name for name in sources if not situation.dead_lettering[name].is_confirmed]
    if situation.roles[queue] is Role.CONSUMED and not sources:
        return
    told = [f'"{queue.name}" refuses messages beyond {limit}.']
    if losing:
        told.append(f"Dead letters of {quoted(losing)} that it refuses are lost.")
    if len(losing) < len(sources):
        kept = [name.name for name in sources if name.name not in losing]
        told.append(
            f"Those of {quoted(kept)} then stay in their queue, in no message count, and it may exceed the limit."
        )
    yield _of("L26", Severity.WARNING, queue, " ".join(told))


def _lease(at: _At) -> Iterator[Finding]:
    situation, queue, setting = at.situation, at.queue, at.setting
    lease = setting.expires_ms
    if lease is None:
        return
    role, by = situation.roles[queue], setting.decided_by("expires")
    head = f'"{queue.name}" is deleted after {lease} ms without use ({by})'
    if role is Role.CONSUMED:
        yield _of("L8", Severity.WARNING, queue, f"{head}: with its messages, when its consumers stay away so long.")
        return
    longest = setting.ttl_ms or 0
    if setting.type is QueueType.QUORUM:
        yield _of(
            "L20",
            Severity.ERROR,
            queue,
            f"{head}, and being a quorum queue it is not renewed by declaring it again: it goes while messages "
            f"lie in it.",
        )
    if role is Role.RESTING or lease <= longest or setting.type is QueueType.QUORUM:
        wait = f"; they wait {longest} ms" if role is Role.WAITING else ""
        yield _of(
            "L8", Severity.ERROR, queue, f"{head}, with all that lies in it{wait}. Nothing of it is dead-lettered."
        )
    elif not situation.client.renews_leases:
        is_known = situation.client.renews_leases is False
        yield _of(
            "L8",
            Severity.ERROR if is_known else Severity.INFO,
            queue,
            f"{head}. Publishing is no use: what is published later than {lease - longest} ms after the last "
            f"declaration is "
            "lost with the queue.",
        )


def _policies(at: _At) -> Iterator[Finding]:
    queue, setting = at.queue, at.setting
    if setting.ties:
        names = quoted([policy.name for policy in setting.ties])
        yield _of("L25", Severity.WARNING, queue, f'Policies {names} match "{queue.name}" with equal priority.')
    if setting.dead_letter_exchange is not None:
        yield from _hidden_safety(queue, setting)
        return
    hidden = next(
        (each for each in (*setting.shadowed, *setting.unfit) if "dead-letter-exchange" in each.definition), None
    )
    if hidden is None:
        return
    why = (
        f'policy "{setting.policy}" of higher priority applies, and has none'
        if hidden in setting.shadowed
        else f"that policy does not apply to {setting.type} queues, for it holds keys they do not know"
    )
    yield _of(
        "L11",
        Severity.ERROR,
        queue,
        f'Policy "{hidden.name}" would give "{queue.name}" the dead-letter exchange '
        f'"{hidden.definition["dead-letter-exchange"]}", but {why}: dead letters are dropped.',
    )


def _hidden_safety(queue: QueueId, setting: Effective) -> Iterator[Finding]:
    """A policy that is not in force would have made dead-lettering at-least-once."""
    if setting.type is not QueueType.QUORUM or setting.strategy == "at-least-once":
        return
    weaker: Policy | None = next(
        (each for each in setting.shadowed if each.definition.get("dead-letter-strategy") == "at-least-once"), None
    )
    if weaker is not None:
        yield _of(
            "L11",
            Severity.WARNING,
            queue,
            f'Policy "{weaker.name}" would make dead-lettering of "{queue.name}" at-least-once, but policy '
            f'"{setting.policy}" of higher priority applies.',
        )


def _wait(at: _At) -> Iterator[Finding]:
    situation, queue, setting = at.situation, at.queue, at.setting
    if situation.roles[queue] is not Role.WAITING:
        return
    said = setting.sources.get("message-ttl", ())
    values = {source.value for source in said}
    if len(values) > 1:
        by: Source | None = setting.decided_by("message-ttl")
        longest = max(said, key=lambda source: source.value)
        yield _of(
            "L12",
            Severity.WARNING,
            queue,
            f'Messages in "{queue.name}" wait {setting.ttl_ms} ms, for {by}; {longest}. They go on early.',
        )


def _nothing_to_do(at: _At) -> Iterator[Finding]:
    queue, setting = at.queue, at.setting
    if setting.dead_letter_exchange is not None:
        return
    if setting.dead_letter_key is not None:
        yield _of(
            "L27",
            Severity.ERROR,
            queue,
            f'"{queue.name}" has the dead-letter routing key "{setting.dead_letter_key}" and no dead-letter exchange.',
        )
    if setting.strategy == "at-least-once" and setting.type is QueueType.QUORUM:
        yield _of(
            "L27",
            Severity.WARNING,
            queue,
            f'"{queue.name}" asks for at-least-once dead-lettering and has no dead-letter exchange.',
        )


def _refused(at: _At) -> Iterator[Finding]:
    situation, queue, setting = at.situation, at.queue, at.setting
    arguments = situation.queues[queue].arguments
    version = situation.version
    if setting.type is QueueType.CLASSIC:
        foreign = [f"x-{key}" for key in _ONLY_QUORUM if f"x-{key}" in arguments]
    else:
        can = version is not None and version >= _FIRST_PRIORITIES
        foreign = [
            f"x-{key}" for key in _ONLY_CLASSIC if f"x-{key}" in arguments and not (can and key == "max-priority")
        ]
    if foreign:
        yield _of(
            "L29",
            Severity.ERROR,
            queue,
            f'"{queue.name}" is a {setting.type} queue with {", ".join(foreign)}: the declaration is refused, '
            f"or it has no "
            "effect.",
        )
    for odd in (*setting.odd, *_odd_words(setting)):
        yield _of("L29", Severity.ERROR, queue, f'"{queue.name}" has a value that is none: {odd}.')


def _odd_words(setting: Effective) -> Iterator[str]:
    if setting.overflow not in _OVERFLOWS:
        yield f"overflow: {setting.overflow!r}"
    if setting.strategy not in _STRATEGIES:
        yield f"dead-letter-strategy: {setting.strategy!r}"


def _durable(at: _At) -> Iterator[Finding]:
    situation, queue = at.situation, at.queue
    declared = situation.queues[queue]
    if not declared.durable:
        # Without both it is meant to be temporary, like a queue of answers.
        severity = Severity.INFO if declared.auto_delete else Severity.WARNING
        yield _of("L30", severity, queue, f'"{queue.name}" is not durable: gone with its messages after a restart.')
    elif declared.auto_delete:
        yield _of(
            "L30",
            Severity.WARNING,
            queue,
            f'"{queue.name}" is deleted with its messages when its last consumer leaves.',
        )


_RULES: Final = (
    _delivery_limit, _no_limit_before_its_time, _rejects, _expiry, _strategy, _length, _lease, _policies, _wait,
    _nothing_to_do, _refused, _durable,
)  # fmt: skip
