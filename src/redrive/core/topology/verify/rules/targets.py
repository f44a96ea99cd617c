"""Where dead letters go, and whether anything is there: exchanges, bindings, alternate exchanges."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.core.topology.ladder import is_level
from redrive.core.topology.verify.findings import Finding, Severity
from redrive.core.topology.verify.patterns import EVERY, is_literal, shown
from redrive.core.topology.verify.routing import DEFAULT, Keys, QueueId, Route
from redrive.core.topology.verify.situation import DeadLettering, Role, Situation
from redrive.core.topology.verify.wording import named, quoted


def found(situation: Situation) -> Iterator[Finding]:
    """Dead letters that find no queue, bindings and exchanges that lead nowhere."""
    addressed: list[QueueId] = []
    for queue, lettering in situation.dead_lettering.items():
        if not situation.causes(queue):
            continue
        if _is_addressed(situation, queue, lettering):
            addressed.append(queue)
        else:
            yield from _target(situation, queue, lettering)
    yield from _addressed([queue for queue in addressed if not is_level(queue.name)])
    yield from _definitions(situation)


def _is_addressed(situation: Situation, queue: QueueId, lettering: DeadLettering) -> bool:
    """A waiting queue that hands each message to the queue its publisher named."""
    return (
        lettering.exchange == DEFAULT
        and situation.roles[queue] is Role.WAITING
        and situation.settings[queue].dead_letter_key is None
        and (EVERY,) in lettering.keys
    )


def _target(situation: Situation, queue: QueueId, lettering: DeadLettering) -> Iterator[Finding]:
    fate = "kept where no message count shows it, and tried for ever" if lettering.is_confirmed else "dropped"
    if not situation.router.exists(queue.vhost, lettering.exchange):
        yield Finding(
            code="L2",
            severity=Severity.ERROR,
            vhost=queue.vhost,
            queue=queue.name,
            story=f'"{queue.name}" dead-letters to exchange "{lettering.exchange}", which does not exist: the '
            f"message is {fate}.",
            path=(queue.name, named(lettering.exchange), "nothing"),
        )
        return
    milder = Severity.WARNING if situation.roles[queue] is Role.CONSUMED else Severity.INFO
    for keys, route in zip(lettering.keys, lettering.routes, strict=True):
        if route.undecided is not None:
            yield _undecided(queue, lettering, route, milder=milder)
        elif route.lost is not None:
            yield _lost((queue, lettering), keys, route, fate=fate, milder=milder)


def _undecided(queue: QueueId, lettering: DeadLettering, route: Route, *, milder: Severity) -> Finding:
    return Finding(
        code="L28",
        severity=milder if route.is_complex else Severity.WARNING,
        vhost=queue.vhost,
        queue=queue.name,
        story=f'Where dead letters of "{queue.name}" go cannot be decided: {route.undecided}.',
        path=(queue.name, named(lettering.exchange), "?"),
    )


def _lost(place: tuple[QueueId, DeadLettering], keys: Keys, route: Route, *, fate: str, milder: Severity) -> Finding:
    queue, lettering = place
    is_sure = all(is_literal(key) for key in keys)
    # Of a binding with wildcards nobody knows here which keys there are in fact.
    severity = Severity.ERROR if is_sure or not route.queues else milder
    key = f'key "{route.lost}"' if is_sure else f'a key such as "{route.lost}" (it came with "{shown(keys[0])}")'
    return Finding(
        code="L3",
        severity=severity,
        vhost=queue.vhost,
        queue=queue.name,
        story=f'"{queue.name}" dead-letters to {named(lettering.exchange)} with {key}, and no queue gets it there: the '
        f"message is {fate}.",
        path=(queue.name, f"{named(lettering.exchange)}, key {route.lost}", "no queue"),
    )


def _addressed(queues: list[QueueId]) -> Iterator[Finding]:
    if queues:
        yield Finding(
            code="L28",
            severity=Severity.INFO,
            vhost=queues[0].vhost,
            story=f"{quoted([queue.name for queue in queues])} hand each message to the queue its routing key "
            f"names: it is lost where there "
            f"is none.",
        )


def _definitions(situation: Situation) -> Iterator[Finding]:
    for binding in situation.router.dangling:
        yield Finding(
            code="L31",
            severity=Severity.WARNING,
            vhost=binding.vhost,
            queue=binding.destination if binding.destination_type != "exchange" else None,
            story=f'A binding leads from exchange "{binding.source}" to {binding.destination_type} '
            f'"{binding.destination}" '
            f'with key "{binding.routing_key}", and one of them is not there.',
        )
    for policy in situation.policies.broken:
        yield Finding(
            code="L31",
            severity=Severity.WARNING,
            vhost=policy.vhost,
            story=f'The pattern of policy "{policy.name}" cannot be matched: {policy.pattern!r}. It is taken as '
            f"not applying.",
        )
    yield from _exchanges(situation)


def _exchanges(situation: Situation) -> Iterator[Finding]:
    for exchange in situation.topology.exchanges:
        other = situation.router.alternate(exchange.vhost, exchange.name)
        if other is not None and not situation.router.exists(exchange.vhost, other):
            yield Finding(
                code="L33",
                severity=Severity.ERROR,
                vhost=exchange.vhost,
                story=f'The alternate exchange "{other}" of exchange "{exchange.name}" does not exist: what no binding '
                "matches is dropped.",
                path=(named(exchange.name), named(other), "nothing"),
            )
        elif (
            other is None
            and not exchange.name.startswith("amq.")
            and not situation.router.bound(exchange.vhost, exchange.name)
        ):
            yield Finding(
                code="L33",
                severity=Severity.INFO,
                vhost=exchange.vhost,
                story=f'Nothing is bound to exchange "{exchange.name}": what is published to it is dropped.',
                path=(named(exchange.name), "nothing"),
            )
        if not exchange.durable:
            yield Finding(
                code="L30",
                severity=Severity.WARNING,
                vhost=exchange.vhost,
                story=f'Exchange "{exchange.name}" is not durable: after a restart nothing can be published to it.',
            )
