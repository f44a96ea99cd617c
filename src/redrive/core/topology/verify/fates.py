"""Every fate of a message in a queue, and what becomes of it: the proof, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, assert_never

from redrive.core.topology.model import QueueType
from redrive.core.topology.verify.effective import Effective
from redrive.core.topology.verify.patterns import EVERY, literal
from redrive.core.topology.verify.routing import DEFAULT, QueueId
from redrive.core.topology.verify.situation import DeadLettering, Role, Situation
from redrive.core.topology.verify.wording import named, quoted
from redrive.core.topology.wiring import LadderRetry, RejectRetry, TierRetry, Wiring


class Outcome(StrEnum):
    """DONE: processed. KEPT: it stays in this queue. MOVED: it is in another queue. LOST: it is gone. STUCK: it is
    there and cannot go on. OPEN: it depends on what is not known. NEVER: this cannot happen here.
    """

    DONE = "done"
    KEPT = "kept"
    MOVED = "moved"
    LOST = "lost"
    STUCK = "stuck"
    OPEN = "open"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a message by one `cause`; `text` says why."""

    cause: str
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProof:
    """One queue, its role, and all fates of a message in it."""

    queue: str
    vhost: str
    role: Role
    type: str
    fates: tuple[Fate, ...]

    def document(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "queue": self.queue, "vhost": self.vhost, "role": str(self.role), "type": self.type,
            "fates": [{"cause": each.cause, "outcome": str(each.outcome), "text": each.text} for each in self.fates],
        }  # fmt: skip


def proof(situation: Situation, queue: QueueId) -> QueueProof:
    """All fates of a message in this queue."""
    setting = situation.settings[queue]
    return QueueProof(
        queue=queue.name,
        vhost=queue.vhost,
        role=situation.roles[queue],
        type=str(setting.type or "unknown"),
        fates=tuple(_fates(situation, queue, setting)),
    )


def _fates(situation: Situation, queue: QueueId, setting: Effective) -> Iterator[Fate]:
    if setting.type not in (QueueType.CLASSIC, QueueType.QUORUM):
        yield Fate(cause="any", outcome=Outcome.OPEN, text="Not a queue messages are taken out of.")
        return
    if situation.roles[queue] is Role.CONSUMED:
        yield Fate(cause="ack", outcome=Outcome.DONE, text="Processed, and removed.")
        if queue in situation.wirings:
            yield from _wired(situation, queue, situation.wirings[queue])
        yield _rejected(situation, queue)
        yield Fate(cause="requeue", outcome=Outcome.KEPT, text="Back in this queue, and delivered again.")
        yield _crash(setting)
        if setting.type is QueueType.QUORUM:
            yield _limit(situation, queue, setting)
    yield _expired(situation, queue, setting)
    yield _overflow(situation, queue, setting)
    yield _lease(setting)
    yield _restart(situation, queue)


def _wired(situation: Situation, queue: QueueId, wiring: Wiring) -> Iterator[Fate]:
    """What redrive does with a message whose handler failed."""
    copied = "published there, confirmed, before it is acknowledged here."
    match wiring.retry:
        case RejectRetry(delay_ms=delay_ms):
            found = _dies(situation, queue, "retry")
            yield replace(found, text=f"Rejected, back after {delay_ms} ms. {found.text}")
        case TierRetry(exchange=exchange, tiers=tiers):
            ways = [(exchange, tier.routing_key) for tier in tiers]
            yield Fate(cause="retry", outcome=_arrives(situation, queue, ways), text=f"To {named(exchange)}: {copied}")
        case LadderRetry():
            yield Fate(cause="retry", outcome=Outcome.MOVED, text=f"To the delay ladder: {copied}")
        case _ as never:
            assert_never(never)
    route = wiring.dead_letter
    if route.by_reject:
        yield _dies(situation, queue, "dead letter")
        return
    outcome = _arrives(situation, queue, [(route.exchange, route.routing_key)])
    yield Fate(cause="dead letter", outcome=outcome, text=f'To "{wiring.dead_letter_queue}": {copied}')


def _arrives(situation: Situation, queue: QueueId, ways: list[tuple[str, str]]) -> Outcome:
    routes = [situation.router.route(queue.vhost, exchange, (literal(key),)) for exchange, key in ways]
    return Outcome.MOVED if all(route.queues for route in routes) else Outcome.STUCK


def _dies(situation: Situation, queue: QueueId, cause: str) -> Fate:
    """What becomes of a message that dies here by this cause."""
    lettering = situation.dead_lettering.get(queue)
    if lettering is None:
        return Fate(cause=cause, outcome=Outcome.LOST, text="Dropped: there is no dead-letter exchange.")
    if _names_its_target(situation, queue, lettering):
        return Fate(
            cause=cause, outcome=Outcome.MOVED, text=f"To the queue its routing key names; {_safety(lettering)}"
        )
    if any(route.undecided for route in lettering.routes):
        return Fate(cause=cause, outcome=Outcome.OPEN, text="It depends on headers, or on a plugin.")
    if any(not route.is_sure for route in lettering.routes):
        outcome = Outcome.STUCK if lettering.is_confirmed else Outcome.LOST
        return Fate(cause=cause, outcome=outcome, text=f"No queue behind {named(lettering.exchange)} for every key.")
    names = quoted([target.name for target in sorted(lettering.targets)])
    told = f"Through {named(lettering.exchange)} to {names}; {_safety(lettering)}"
    return Fate(cause=cause, outcome=Outcome.MOVED, text=told)


def _names_its_target(situation: Situation, queue: QueueId, lettering: DeadLettering) -> bool:
    return (
        lettering.exchange == DEFAULT
        and situation.settings[queue].dead_letter_key is None
        and (EVERY,) in lettering.keys
    )


def _safety(lettering: DeadLettering) -> str:
    if lettering.is_confirmed:
        return "it leaves this queue when the other has confirmed it."
    return "without a confirm: a broker killed at that moment may lose it."


def _rejected(situation: Situation, queue: QueueId) -> Fate:
    return _dies(situation, queue, "reject")


def _crash(setting: Effective) -> Fate:
    counted = setting.type is QueueType.QUORUM and setting.delivery_limit is not None
    until = f", at most {setting.delivery_limit} times" if counted else ""
    return Fate(cause="crash", outcome=Outcome.KEPT, text=f"Back in this queue, and delivered again{until}.")


def _limit(situation: Situation, queue: QueueId, setting: Effective) -> Fate:
    if setting.delivery_limit is None:
        return Fate(cause="delivery limit", outcome=Outcome.NEVER, text="There is none.")
    return _dies(situation, queue, "delivery limit")


def _expired(situation: Situation, queue: QueueId, setting: Effective) -> Fate:
    if setting.ttl_ms is not None:
        return _dies(situation, queue, "expiry")
    if situation.roles[queue] is Role.WAITING or situation.client.per_message_ttl:
        return _dies(situation, queue, "expiry")
    known = situation.client.per_message_ttl is False
    text = "There is no TTL." if known else "There is no TTL (but for an expiration of the message itself)."
    return Fate(cause="expiry", outcome=Outcome.NEVER, text=text)


def _overflow(situation: Situation, queue: QueueId, setting: Effective) -> Fate:
    if not setting.is_bounded:
        return Fate(cause="overflow", outcome=Outcome.NEVER, text="Its length has no limit.")
    if setting.overflow == "reject-publish":
        return Fate(
            cause="overflow", outcome=Outcome.OPEN, text="A publisher with confirms is told; who has none loses it."
        )
    return _dies(situation, queue, "overflow")


def _lease(setting: Effective) -> Fate:
    if setting.expires_ms is None:
        return Fate(cause="queue expiry", outcome=Outcome.NEVER, text="The queue does not expire.")
    return Fate(
        cause="queue expiry", outcome=Outcome.LOST, text=f"Deleted with the queue after {setting.expires_ms} ms unused."
    )


def _restart(situation: Situation, queue: QueueId) -> Fate:
    declared = situation.queues[queue]
    if not declared.durable:
        return Fate(cause="restart", outcome=Outcome.LOST, text="The queue is not durable.")
    if situation.client.persistent:
        return Fate(cause="restart", outcome=Outcome.KEPT, text="The queue is durable, its messages are persistent.")
    return Fate(cause="restart", outcome=Outcome.KEPT, text="The queue is durable; persistent messages stay.")
