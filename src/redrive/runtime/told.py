"""What is told about committed ends: one event per batch of processed deliveries, one per delivery of any other end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.core import settlement
from redrive.core.policy.failure import Failure
from redrive.core.ports import End
from redrive.core.units import Millis
from redrive.runtime.delivery import Delivery
from redrive.runtime.endings import Ended
from redrive.runtime.events import Events


def tell_processed(events: Events, queue: str, processed: Sequence[tuple[Delivery, Millis]]) -> None:
    """Handlers that succeeded and are settled."""
    if processed:
        events.emit(
            "deliveries.processed",
            queue=queue,
            durations_ms=[duration for _, duration in processed],
            attempts=[delivery.attempt for delivery, _ in processed],
            tenants=[delivery.tenant for delivery, _ in processed],
        )


def tell_end(events: Events, ended: Ended) -> None:
    """Any other end, now durable."""
    delivery, end = ended.delivery, ended.end
    match end.settlement:
        case settlement.Ack():
            events.emit("delivery.duplicate", queue=delivery.queue, message_id=delivery.message.id, key=delivery.key)
        case settlement.Requeue(due_at=due_at, reason=reason):
            events.emit("delivery.requeued", **facts(delivery), reason_code=reason.code, due_at=due_at)
        case settlement.Retry(due_at=due_at, reason=reason):
            delay_ms = end.entry.next_delay_ms if end.entry is not None else None
            failure = _failure(ended, reason)
            events.emit("delivery.retry_scheduled", **facts(delivery), **failure, delay_ms=delay_ms, due_at=due_at)
            if ended.asked_delay_ms is not None:
                events.emit(
                    "delivery.delay_changed",
                    queue=delivery.queue,
                    message_id=delivery.message.id,
                    asked_ms=ended.asked_delay_ms,
                    delay_ms=delay_ms,
                )
        case settlement.DeadLetter(reason=reason):
            _tell_dead(events, ended, end, reason=reason)


def facts(delivery: Delivery) -> dict[str, Any]:
    """Which delivery, as every event about one says it."""
    message = delivery.message
    return {
        "queue": delivery.queue,
        "message_id": message.id,
        "key": message.key,
        "tenant": message.tenant,
        "trace_id": message.properties.trace_id,
        "type": message.properties.type,
        "correlation_id": message.properties.correlation_id,
        "routing_key": delivery.routing_key,
        "attempt": delivery.attempt,
        "max_attempts": delivery.max_attempts,
    }


def _tell_dead(events: Events, ended: Ended, end: End, *, reason: settlement.Reason) -> None:
    letter = end.letter
    assert letter is not None, "a dead letter always has its record"
    events.emit(
        "delivery.dead_lettered",
        **{**facts(ended.delivery), "attempt": letter.attempt_count},
        **_failure(ended, reason),
        letter_id=letter.id,
        dead_letter_queue=letter.dead_letter_queue,
        reason_code=reason.code,
        reason_text=reason.text,
    )


def _failure(ended: Ended, reason: settlement.Reason) -> dict[str, Any]:
    failure: Failure | None = ended.failure
    return {
        "error_code": reason.code if failure is None else failure.code,
        "error_type": None if failure is None else failure.error_type,
        "error_text": reason.text if failure is None else failure.text,
        "is_retryable": False if failure is None else failure.is_retryable,
        "duration_ms": ended.duration_ms,
    }
