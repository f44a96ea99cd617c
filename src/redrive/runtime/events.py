"""The list of things that happen: name, fields, units. Logs, metrics and traces subscribe to it.

Dashboards and the reference in docs/ rely on this table; a test holds every `emit` to it. Fields are values, never
formatted into text. What happens per message on the happy path is one event per batch, so that the hot path pays
for it once.

The books balance: every delivery counted in `deliveries.taken` ends in exactly one of `ENDS`, so that at any moment

    taken = processed + retry_scheduled + dead_lettered + requeued + duplicate + lease_lost + unsettled + in flight

`delivery.interrupted` and `delivery.timed_out` say something about a delivery and are no end of one. What a kill
leaves unended is told by the next hand-over of that message (`delivery.interrupted`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias


class Level(StrEnum):
    """How loud an event is in a log."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """One row of the table: `fields` maps a name to its unit or meaning."""

    level: Level
    text: str
    fields: Mapping[str, str]


_DELIVERY: Final = {
    "queue": "consumer queue",
    "message_id": "id of the message",
    "key": "idempotency key or None",
    "tenant": "tenant or None",
    "trace_id": "trace id or None",
    "type": "message type or None",
    "correlation_id": "as published, or None",
    "routing_key": "as first published",
    "attempt": "1, 2, …",
    "max_attempts": "attempts allowed",
}
_FAILURE: Final = {
    "error_code": "machine code of the failure",
    "error_type": "class of the exception or None",
    "error_text": "text, cut",
    "is_retryable": "whether the failure is transient",
    "duration_ms": "time in the handler",
}

EVENTS: Final[Mapping[str, EventType]] = {
    "message.published": EventType(
        level=Level.DEBUG, text="Messages published", fields={"queue": "target queue", "count": "messages"}
    ),
    "deliveries.taken": EventType(
        level=Level.DEBUG,
        text="Deliveries taken",
        fields={"queue": "consumer queue", "count": "deliveries", "without_key": "of these, deliveries without a key"},
    ),
    "deliveries.processed": EventType(
        level=Level.DEBUG,
        text="Deliveries processed",
        fields={
            "queue": "consumer queue",
            "durations_ms": "time in the handler, one number per delivery",
            "attempts": "attempt number of each, same order",
            "tenants": "tenant or None of each, same order",
        },
    ),
    "delivery.retry_scheduled": EventType(
        level=Level.WARN,
        text="Job failed, scheduling retry",
        fields={**_DELIVERY, **_FAILURE, "delay_ms": "until the next attempt", "due_at": "unix ms of the next attempt"},
    ),
    "delivery.delay_changed": EventType(
        level=Level.WARN,
        text="The queue has no such retry delay, another was taken",
        fields={
            "queue": "consumer queue",
            "message_id": "id",
            "asked_ms": "the delay the handler or the other side asked for",
            "delay_ms": "the delay it gets",
        },
    ),
    "delivery.dead_lettered": EventType(
        level=Level.ERROR,
        text="Message dead-lettered",
        fields={
            **_DELIVERY,
            **_FAILURE,
            "letter_id": "the dead letter",
            "dead_letter_queue": "where people look",
            "reason_code": "machine code",
            "reason_text": "for a person",
        },
    ),
    "delivery.requeued": EventType(
        level=Level.INFO,
        text="Delivery handed back",
        fields={**_DELIVERY, "reason_code": "why", "due_at": "unix ms"},
    ),
    "delivery.duplicate": EventType(
        level=Level.INFO, text="Duplicate skipped", fields={"queue": "consumer queue", "message_id": "id", "key": "key"}
    ),
    "delivery.interrupted": EventType(
        level=Level.WARN, text="An earlier start never ended", fields={**_DELIVERY, "worker": "who had it"}
    ),
    "delivery.lease_lost": EventType(
        level=Level.ERROR, text="Lease lost, result refused", fields={"queue": "consumer queue", "message_id": "id"}
    ),
    "delivery.failed_after_commit": EventType(
        level=Level.WARN,
        text="Handler raised after its transaction committed; processed all the same",
        fields={"queue": "consumer queue", "message_id": "id", "error_text": "text, cut"},
    ),
    "delivery.unsettled": EventType(
        level=Level.ERROR,
        text="The store refused this delivery's end; its lease ends and it comes back",
        fields={"queue": "consumer queue", "message_id": "id", "error_text": "text, cut"},
    ),
    "delivery.timed_out": EventType(
        level=Level.WARN,
        text="Handler over its time limit",
        fields={"queue": "consumer queue", "message_id": "id", "timeout_ms": "the limit"},
    ),
    "breaker.changed": EventType(
        level=Level.WARN,
        text="Breaker changed",
        fields={
            "queue": "consumer queue",
            "state": "closed, open or half_open",
            "until": "unix ms of the next probe or None",
        },
    ),
    "mail.recipient_refused": EventType(
        level=Level.WARN,
        text="A recipient was refused for good; the mail goes on for the others",
        fields={
            "queue": "consumer queue",
            "message_id": "id of the message",
            "tenant": "tenant or None",
            "domain": "of the address",
            "error_code": "machine code of the refusal",
            "error_text": "what the server said, cut",
            "suppress": "whether the address is bad for good",
        },
    ),
    "lane.held": EventType(
        level=Level.ERROR,
        text="The other side takes nothing for a while; messages wait and lose no attempt",
        fields={
            "queue": "consumer queue",
            "error_code": "machine code of the failure",
            "cause": "what it is about (quota, paused, suspended, auth, …) or None",
            "error_text": "what the other side said, cut",
            "until": "unix ms of the next try",
        },
    ),
    "lane.slowed": EventType(
        level=Level.INFO,
        text="The other side refuses what comes too fast; sending more slowly",
        fields={
            "queue": "consumer queue",
            "error_code": "machine code of the failure",
            "cause": "what it is about or None",
            "error_text": "what the other side said, cut",
            "per_s": "messages in a second from now on, in this worker",
        },
    ),
    "consumer.paused": EventType(
        level=Level.ERROR,
        text="Consuming paused: the broker or store is not available",
        fields={
            "queue": "consumer queue",
            "error_code": "code of the RedriveError",
            "error_text": "text",
            "delay_ms": "until the next try",
        },
    ),
    "consumer.still_paused": EventType(
        level=Level.DEBUG,
        text="Consuming still paused: another try failed",
        fields={
            "queue": "consumer queue",
            "error_code": "code of the RedriveError",
            "error_text": "text",
            "delay_ms": "until the next try",
        },
    ),
    "consumer.resumed": EventType(level=Level.INFO, text="Consuming resumed", fields={"queue": "consumer queue"}),
    "worker.started": EventType(
        level=Level.INFO, text="Worker started", fields={"worker": "name", "queues": "list", "pid": "process id"}
    ),
    "store.is_local": EventType(
        level=Level.WARN,
        text="What is kept beside the broker lies in a file of this host: workers on other hosts do not see it",
        fields={"store": "the file", "broker": "URL of the broker, masked"},
    ),
    "consumer.outlasts_broker": EventType(
        level=Level.WARN,
        text="The handler may take longer than the broker waits for an acknowledgement: it will cut the channel",
        fields={
            "queue": "consumer queue",
            "timeout_ms": "the handler's limit",
            "broker_timeout_ms": "the broker's, as the topology says or by its default",
        },
    ),
    "worker.draining": EventType(
        level=Level.INFO,
        text="Worker draining",
        fields={"worker": "name", "in_hand": "deliveries", "grace_ms": "limit"},
    ),
    "worker.stopped": EventType(
        level=Level.INFO, text="Worker stopped", fields={"worker": "name", "handed_back": "deliveries"}
    ),
    "process.exited": EventType(
        level=Level.ERROR,
        text="Worker process died, starting another",
        fields={"pid": "process id", "exit_code": "code, negative for a signal", "delay_ms": "until the restart"},
    ),
    "ingest.accepted": EventType(
        level=Level.INFO,
        text="Webhook accepted",
        fields={
            "source": "source",
            "key": "idempotency key",
            "trace_id": "trace id",
            "duplicate": "bool",
            "secret_index": "which secret matched",
            "body_bytes": "size",
        },
    ),
    "ingest.refused": EventType(
        level=Level.WARN,
        text="Webhook refused",
        fields={
            "source": "source",
            "status": "HTTP status",
            "error_code": "problem type",
            "trace_id": "trace id or None",
        },
    ),
    "ingest.conflict": EventType(
        level=Level.ERROR,
        text="Known key came with another body, refused",
        fields={"source": "source", "key": "idempotency key", "trace_id": "trace id"},
    ),
    "ingest.sources_changed": EventType(
        level=Level.INFO, text="Webhook sources and secrets replaced", fields={"sources": "names, sorted"}
    ),
    "ingest.sources_refused": EventType(
        level=Level.ERROR, text="New webhook secrets refused, the old ones stand", fields={"error_text": "why"}
    ),
    "redrive.job_changed": EventType(
        level=Level.INFO,
        text="Redrive job changed",
        fields={
            "job_id": "job",
            "state": "job state",
            "sent": "items",
            "skipped": "items",
            "pending": "items",
            "error_text": "why it failed or None",
            "actor": "who",
        },
    ),
    "redrive.sent": EventType(
        level=Level.DEBUG, text="Letters redriven", fields={"job_id": "job", "count": "letters sent in this batch"}
    ),
    "redrive.came_back": EventType(
        level=Level.WARN,
        text="Redriven messages came back",
        fields={
            "job_id": "job",
            "sent": "letters sent in the last minute",
            "came_back": "of those, dead again",
            "percent": "of sent, rounded",
        },
    ),
    "group.changed": EventType(
        level=Level.INFO,
        text="Group changed",
        fields={"group": "fingerprint", "state": "its state now", "actor": "who", "note": "why"},
    ),
    "letter.reviewed": EventType(
        level=Level.INFO,
        text="Letter reviewed",
        fields={"letter_id": "letter", "to": "review state", "actor": "who", "note": "why"},
    ),
    "letters.collected": EventType(
        level=Level.INFO,
        text="Dead letters taken from a dead-letter queue of the broker into the store",
        fields={"queue": "dead-letter queue", "taken": "messages", "new": "letters that were not stored yet"},
    ),
    "collector.started": EventType(
        level=Level.INFO,
        text="This worker collects from a queue from now on; one does at a time",
        fields={"queue": "dead-letter queue, or the queue whose failed jobs are collected", "worker": "name"},
    ),
    "collector.stopped": EventType(
        level=Level.INFO,
        text="This worker no longer collects from a queue; another may",
        fields={"queue": "the same", "worker": "name"},
    ),
    "collector.left": EventType(
        level=Level.WARN,
        text="Failed jobs, or dead letters the store cannot hold, are left where they lie",
        fields={"queue": "queue", "reason": "why", "count": "jobs or messages"},
    ),
    "collector.paused": EventType(
        level=Level.ERROR,
        text="Collecting paused: the broker or store is not available, or the queue is not there",
        fields={
            "queue": "dead-letter queue, or the queue whose failed jobs are collected",
            "error_code": "code of the RedriveError",
            "error_text": "text",
            "delay_ms": "until the next try",
        },
    ),
    "collector.still_paused": EventType(
        level=Level.DEBUG,
        text="Collecting is still paused",
        fields={
            "queue": "the same",
            "error_code": "code of the RedriveError",
            "error_text": "text",
            "delay_ms": "until the next try",
        },
    ),
    "collector.resumed": EventType(level=Level.INFO, text="Collecting resumed", fields={"queue": "the same"}),
    "letters.archived": EventType(
        level=Level.ERROR,
        text="More dead letters than allowed: the oldest were written into a file and removed",
        fields={
            "queue": "dead-letter queue",
            "count": "letters",
            "max_letters": "how many may lie there",
            "file": "where they are; `redrive dlq import` loads it",
        },
    ),
    "letters.expired": EventType(
        level=Level.WARN,
        text="Letters that nobody has decided about were over their time: written into a file and removed",
        fields={
            "queue": "dead-letter queue",
            "count": "letters",
            "file": "where they are; `redrive dlq import` loads it",
        },
    ),
    "letters.erased": EventType(
        level=Level.WARN,
        text="Letters erased by a person, from store and archives",
        fields={
            "letters": "of the store",
            "archived": "of archives",
            "files": "archives that were rewritten",
            "held": "letters that stay: a redrive job holds them",
            "actor": "who",
        },
    ),
    "letters.not_archived": EventType(
        level=Level.ERROR,
        text="Dead letters are over their maximum or their time, and the archive cannot be written: they stay",
        fields={"queue": "dead-letter queue", "file": "which file", "error_text": "why"},
    ),
    "letters.removed": EventType(
        level=Level.WARN,
        text="Letters removed by a person",
        fields={"count": "letters", "actor": "who", "note": "why"},
    ),
    "api.written": EventType(
        level=Level.WARN,
        text="A write over the admin API, carried out or refused",
        fields={
            "actor": "name of the token, or subject of the JWT",
            "role": "viewer, operator or admin",
            "operation": "name of the operation",
            "target": "queue or job it names, or empty",
            "status": "HTTP status of the answer",
            "address": "where the request came from",
            "request_id": "under which the record of it is kept",
        },
    ),
    "api.login_failed": EventType(
        level=Level.WARN,
        text="A request with a bad token",
        fields={"reason": "what was wrong with it", "address": "where the request came from"},
    ),
    "api.failed": EventType(
        level=Level.ERROR,
        text="The admin API met something nobody foresaw",
        fields={"operation": "name of the operation, or the method", "error_type": "class of the exception"},
    ),
    "queue.limits_set": EventType(
        level=Level.WARN,
        text="Limits of a queue changed by a person",
        fields={
            "queue": "consumer queue",
            "batch": "starts of one tenant in a row, None: as the consumer says",
            "rates": "tenant to its rate; what is not named is as the consumer says",
            "actor": "who",
            "note": "why",
        },
    ),
    "queue.limits_changed": EventType(
        level=Level.INFO,
        text="This worker goes by other limits from now on",
        fields={
            "queue": "consumer queue",
            "batch": "starts of one tenant in a row",
            "rates": "tenant to its rate, as far as a person has set them",
            "actor": "who, None where the consumer's own word holds again",
        },
    ),
    "queue.pause_set": EventType(
        level=Level.WARN,
        text="Queue paused, or let go on, by a person",
        fields={"queue": "consumer queue", "is_paused": "bool", "actor": "who", "note": "why"},
    ),
    "queue.quarantine_set": EventType(
        level=Level.WARN,
        text="Messages of a tenant or key set aside, or released, by a person",
        fields={
            "queue": "consumer queue",
            "tenants": "names that were changed",
            "keys": "names that were changed",
            "is_released": "bool",
            "until": "when it ends by itself (ms), None: never",
            "actor": "who",
            "note": "why",
        },
    ),
    "queue.paused": EventType(
        level=Level.WARN,
        text="This worker takes nothing more of the queue: a person has paused it",
        fields={"queue": "consumer queue", "actor": "who", "note": "why"},
    ),
    "queue.resumed": EventType(
        level=Level.INFO,
        text="This worker takes messages of the queue again",
        fields={"queue": "consumer queue"},
    ),
    "queue.quarantine_changed": EventType(
        level=Level.INFO,
        text="This worker sets aside other messages from now on",
        fields={"queue": "consumer queue", "count": "tenants and keys that are set aside"},
    ),
    "queue.control_unreadable": EventType(
        level=Level.ERROR,
        text="What people want of the queues cannot be read: the consumers start by their own word",
        fields={"queues": "consumer queues", "error_text": "why"},
    ),
    "upkeep.failed": EventType(
        level=Level.ERROR,
        text="A duty of this worker failed for no reason that is known; it is tried again at its next turn",
        fields={"duty": "its name", "error_text": "why"},
    ),
    "upkeep.leftovers_sent": EventType(
        level=Level.INFO,
        text="Messages of transactions sent whose worker is gone",
        fields={"count": "messages"},
    ),
    "upkeep.pruned": EventType(
        level=Level.INFO, text="Expired records pruned", fields={"what": "claims or letters", "count": "records"}
    ),
}


ENDS: Final[Mapping[str, str]] = {
    "deliveries.processed": "processed",
    "delivery.retry_scheduled": "retried",
    "delivery.dead_lettered": "dead_lettered",
    "delivery.requeued": "requeued",
    "delivery.duplicate": "duplicate",
    "delivery.lease_lost": "lease_lost",
    "delivery.unsettled": "unsettled",
}
"""Event that ends a delivery, and the word the metrics use for that end."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    name: str
    fields: Mapping[str, Any]

    @property
    def type(self) -> EventType:
        """Its row in the table."""
        return EVENTS[self.name]


Subscriber: TypeAlias = Callable[[Event], None]


class Events:
    """Hands every event to every subscriber, at once, in the caller's thread. A subscriber must not block; one
    that raises is dropped from that event only (a broken log must not end a delivery).
    """

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a subscriber; it sees events from now on."""
        self._subscribers = (*self._subscribers, subscriber)

    def emit(self, name: str, **fields: Any) -> None:
        """Tell everyone. `name` and the fields are a row of `EVENTS`."""
        if not self._subscribers:
            return
        event = Event(name, fields)
        for subscriber in self._subscribers:
            with suppress(Exception):  # see the class docstring
                subscriber(event)
