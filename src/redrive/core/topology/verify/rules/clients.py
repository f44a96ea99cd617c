"""What publishers and consumers add: losses that depend on how they behave, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from redrive.core.topology.model import QueueType
from redrive.core.topology.verify.findings import Finding, Severity
from redrive.core.topology.verify.routing import QueueId
from redrive.core.topology.verify.situation import Role, Situation
from redrive.core.topology.verify.ways import hops, nodes
from redrive.core.topology.verify.wording import quoted

_FOUR: Final = (4, 0)
_NACK_IS_FREE: Final = (4, 3)
_NOT_INTERPRETED: Final = ((3, 13, 0), (3, 13, 2))


def found(situation: Situation) -> Iterator[Finding]:
    """Everything that is a matter of the programs, not of the broker alone."""
    if not situation.queues:
        return
    yield from _copies_with_deaths(situation)
    yield from _mixed_waits(situation)
    yield from _publishers(situation)
    yield from _neighbours(situation)
    yield from _handing_back(situation)


def _graded(code: str, bad: Severity, *, kept: bool | None, broken: str, unknown: str) -> Iterator[Finding]:
    """Nothing where the promise is kept, information where nobody knows, and `bad` where it is broken."""
    if kept is not True:
        is_broken = kept is False
        yield Finding(code=code, severity=bad if is_broken else Severity.INFO, story=broken if is_broken else unknown)


def _copies_with_deaths(situation: Situation) -> Iterator[Finding]:
    version = situation.version
    if version is not None and (version >= _FOUR or _NOT_INTERPRETED[0] <= version <= _NOT_INTERPRETED[1]):
        return
    chain = next(_chains(situation), None)
    if chain is None:
        return
    path = " → ".join(chain)
    yield from _graded(
        "L10",
        Severity.ERROR,
        kept=situation.client.strips_deaths,
        broken=f"Copies are published with the x-death they came with. The second time through {path} the broker "
        f"takes that for a "
        "loop and drops the message.",
        unknown=f"Messages wait in a chain ({path}). A copy published into it with the x-death it came with is "
        f"dropped the second "
        "time; whether consumers remove it is not known.",
    )


def _chains(situation: Situation) -> Iterator[tuple[str, str]]:
    for node in nodes(situation):
        if situation.roles[node.queue] is Role.WAITING:
            for hop in hops(situation, node):
                target = hop.target.queue
                if target != node.queue and situation.roles[target] is Role.WAITING:
                    yield node.queue.name, target.name


def _mixed_waits(situation: Situation) -> Iterator[Finding]:
    for queue in situation.with_role(Role.WAITING):
        ttl = situation.settings[queue].ttl_ms
        if ttl is None:
            yield _of(
                "L13",
                Severity.WARNING,
                queue,
                f'"{queue.name}" makes messages wait without a TTL of its own, by the expiration of each: one '
                f"that waits short "
                "leaves after all in front of it that wait longer, and one without expiration never leaves.",
            )
        elif situation.client.per_message_ttl:
            yield _of(
                "L13",
                Severity.WARNING,
                queue,
                f'Messages with an expiration of their own come to "{queue.name}" (TTL {ttl} ms): a shorter one '
                f"comes late, "
                "behind those in front of it.",
            )


def _of(code: str, severity: Severity, queue: QueueId, *story: str) -> Finding:
    text = "".join(story)
    return Finding(code=code, severity=severity, vhost=queue.vhost, queue=queue.name, story=text, path=(queue.name,))


def _publishers(situation: Situation) -> Iterator[Finding]:
    client = situation.client
    yield from _graded(
        "L14",
        Severity.ERROR,
        kept=client.persistent,
        broken="Messages are published transient: a restart of the broker loses them, out of durable queues as well.",
        unknown="Whether messages are published persistent is not known: transient ones are lost at a restart of "
        "the broker.",
    )
    promises = {"confirms": client.confirms, "mandatory": client.mandatory}
    missing = " and ".join(name for name, kept in promises.items() if kept is False)
    kept = False if missing else all(promises.values()) or None
    yield from _graded(
        "L17",
        Severity.ERROR,
        kept=kept,
        broken=f"Messages are published without {missing}: one that no queue takes, or that is not stored, is lost "
        f"unnoticed.",
        unknown="Whether publishers use confirms and mandatory is not known: without them an unroutable message is "
        "lost unnoticed.",
    )
    yield from _graded(
        "L18",
        Severity.WARNING,
        kept=client.bounded_headers,
        broken="Headers grow with each retry and have no limit: beyond a frame the connection is closed, at every "
        "attempt again.",
        unknown="Whether headers that grow with each retry have a limit is not known: they must stay below 131 "
        "072 bytes.",
    )


def _limited(situation: Situation) -> list[QueueId]:
    return [
        queue
        for queue in situation.with_role(Role.CONSUMED)
        if situation.settings[queue].type is QueueType.QUORUM and situation.settings[queue].delivery_limit is not None
    ]


def _neighbours(situation: Situation) -> Iterator[Finding]:
    limited, prefetch = _limited(situation), situation.client.prefetch
    if not limited or prefetch == 1 or situation.client.crashes is False:
        return
    if prefetch is None:
        yield Finding(
            code="L16",
            severity=Severity.INFO,
            vhost=limited[0].vhost,
            story=f"{quoted([queue.name for queue in limited])} have a delivery limit. With a prefetch above 1 "
            f"a message that kills its "
            f"consumer takes those "
            "prefetched with it to the limit; the prefetch is not known.",
        )
        return
    for queue in limited:
        setting = situation.settings[queue]
        limit = setting.delivery_limit or 0
        end = "dropped" if setting.dead_letter_exchange is None else "dead-lettered"
        yield _of(
            "L16",
            Severity.WARNING,
            queue,
            f'One message that kills its consumer of "{queue.name}" {limit + 1} times takes up to '
            f"{'all others' if prefetch == 0 else f'{prefetch - 1} others'} in its prefetch with it: they reach "
            f"the delivery limit of "
            f"{limit} together and are {end}.",
        )


def _handing_back(situation: Situation) -> Iterator[Finding]:
    client, version = situation.client, situation.version
    limited = _limited(situation)
    if client.requeues is False or client.counts is True or version is None or version < _NACK_IS_FREE or not limited:
        return
    is_known = client.requeues is True and client.counts is False
    tail = "and the consumers do not count" if is_known else "and whether the consumers count is not known"
    yield Finding(
        code="L19",
        severity=Severity.ERROR if is_known else Severity.INFO,
        vhost=limited[0].vhost,
        queue=limited[0].name if len(limited) == 1 else None,
        story=f"The delivery limit of {quoted([queue.name for queue in limited])} does not end a message that "
        f"is handed back with "
        f"basic.nack: since RabbitMQ "
        f"4.3 that does not count, {tail}.",
    )
