"""How a delivery of one consumer ends: asks core, returns the `End` the ledger makes true. Nothing is carried out here.

Random draws and the time come in here and nowhere deeper.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import traceback
from dataclasses import dataclass
from typing import Any, Final

from redrive.core import settlement
from redrive.core.attempt_field import with_attempt
from redrive.core.attempts import attempt_number
from redrive.core.idempotency import Acquired
from redrive.core.letters.letter import Attempt, AttemptOutcome
from redrive.core.letters.making import letter_of
from redrive.core.message import HEADER_LETTER, Message
from redrive.core.policy.classify import (
    classify,
    classify_status,
    error_text,
    error_type,
    failure_of_unknown,
    find_signal,
)
from redrive.core.policy.control import Asides, Control
from redrive.core.policy.decide import WORKER_LOST, decide, decide_start
from redrive.core.policy.failure import Failure, FailureKind
from redrive.core.ports import Clock, End, Received, Taken
from redrive.core.settlement import Reason
from redrive.core.signals import DeadLetter, Requeue, RetryLater, Signal
from redrive.core.text import cut_head
from redrive.core.topology.ladder import has_ladder
from redrive.core.topology.model import EMPTY, Topology
from redrive.core.topology.ways import way_back
from redrive.core.units import Millis, UnixMs
from redrive.errors import ConfigurationError
from redrive.runtime.child import TRACEBACK_NOTE
from redrive.runtime.consumer import Consumer
from redrive.runtime.decode import Undecodable
from redrive.runtime.delivery import CancelReason, Delivery
from redrive.runtime.processes import ChildLostError

SHUTDOWN: Final = "SHUTDOWN"
"""Reason code of what a stopping worker hands back."""

PAUSED: Final = "PAUSED"
"""Reason code of what came in while the queue was being paused, and is handed back unstarted."""

TRACEBACK_BYTES: Final = 4_096
TRACEBACK_FRAMES: Final = 20
BROKEN_POLICY_DELAY_MS: Final[Millis] = 60_000
"""Where the consumer's own backoff raises: wait so long and tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A decided end and what is told about it. `failure` None: the handler did not fail. `asked_delay_ms`: the delay
    the handler or the other side asked for, where the queue's wiring does not have it.
    """

    delivery: Delivery
    end: End
    duration_ms: Millis | None = None
    failure: Failure | None = None
    asked_delay_ms: Millis | None = None


class Endings:
    """The ends of one consumer's deliveries. `topology`: where the broker has one; its wiring tells which delays a
    retry can have.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        system: str,
        version: str | None = None,
        clock: Clock,
        worker: str,
        topology: Topology = EMPTY,
    ) -> None:
        self._consumer = consumer
        wiring = topology.wiring(consumer.queue)
        self._retry_wiring = None if wiring is None else wiring.retry
        self._with_ladder = has_ladder(topology)
        self._system = system
        self._version = version
        self._clock = clock
        self._worker = worker
        self._draw = random.SystemRandom().random
        self._asides: Asides | None = None

    def follow(self, control: Control | None) -> None:
        """What people set aside of this queue from now on."""
        self._asides = Asides(control) if control is not None and control.quarantined else None

    # ------------------------------------------------------------------------------------------- before a handler

    def attempt_of(self, taken: Taken) -> int:
        """The number of the start this delivery is."""
        received, verdict = taken.received, taken.verdict
        if type(verdict) is Acquired and (received.starts is not None or not received.message.headers):
            # What `attempt_number` says too: the usual case, once for every message.
            return verdict.attempts + self._made_elsewhere(received, verdict) if received.others else verdict.attempts
        return attempt_number(
            claim=verdict if isinstance(verdict, Acquired) else None,
            starts=received.starts,
            headers=received.message.headers,
            queue=self._consumer.queue,
        )

    @staticmethod
    def _made_elsewhere(received: Received, verdict: Acquired) -> int:
        """Starts that the claim cannot know. One that it knows as lost may have been found lost by others too."""
        return max(0, received.others - (verdict.lost is not None)) if verdict.cycle == 0 else 0

    def before_start(self, delivery: Delivery, now: UnixMs) -> Ended | None:
        """The end of a delivery whose handler must not run; None: run it."""
        message, received = delivery._message, delivery._taken.received
        expires_at = message.expires_at
        if self._consumer.message_ttl_ms is not None:
            own = message.published_at + self._consumer.message_ttl_ms
            expires_at = own if expires_at is None else min(own, expires_at)
        settled = decide_start(
            attempt=delivery.attempt,
            retry=delivery._retry,
            verdict=delivery._taken.verdict,
            lease_ms=self._consumer.lease_ms,
            expires_at=expires_at,
            history=received.history,
            set_aside=None if self._asides is None else self._asides.reason(message, now=now),
            now=now,
        )
        if settled is None:
            return None
        if isinstance(settled, settlement.DeadLetter):
            return self._dead(delivery, settled.reason, entry=None, failure=None, now=now)
        # A redriven copy that is a duplicate was overtaken by a success: that closes its letter too.
        closes = _letter_of(message) if isinstance(settled, settlement.Ack) else None
        return Ended(delivery=delivery, end=End(taken=delivery._taken, settlement=settled, closes_letter=closes))

    def undecodable(self, delivery: Delivery, error: Undecodable, now: UnixMs) -> Ended:
        """The handler cannot be called with these bytes: a dead letter on this attempt."""
        failure = Failure(kind=FailureKind.PERMANENT, code=error.code, text=error.text, error_type=error.error_type)
        entry = self._entry(delivery, failure, now=now, duration_ms=0)
        return self._dead(delivery, Reason(code=error.code, text=error.text), entry=entry, failure=failure, now=now)

    def handed_back(self, delivery: Delivery, code: str, text: str, *, delay_ms: Millis = 0) -> Ended:
        """Back to the queue without cost."""
        settled = settlement.Requeue(due_at=self._clock.now() + delay_ms, reason=Reason(code=code, text=text))
        return Ended(delivery=delivery, end=End(taken=delivery._taken, settlement=settled))

    # ------------------------------------------------------------------------------------------- after a handler

    def processed(self, delivery: Delivery, now: UnixMs) -> End:
        """The handler succeeded."""
        return End(
            taken=delivery._taken,
            settlement=settlement.ACK,
            claim_expires_at=now + self._consumer.idempotency_ttl_ms,
            closes_letter=_letter_of(delivery._message),
        )

    def returned_status(self, result: Any, now: UnixMs) -> Failure | Requeue | None:
        """What a returned HTTP status means; None: success, or the result is no status. A handler that has its own
        rules for statuses returns what it made of one.
        """
        if isinstance(result, Failure | Requeue):
            return result
        status = result if isinstance(result, int) else getattr(result, "status_code", None)
        if not isinstance(status, int) or isinstance(status, bool):
            return None
        headers = getattr(result, "headers", None)
        get = getattr(headers, "get", None)
        retry_after = get("retry-after") if callable(get) else None
        return classify_status(status, retry_after=retry_after, now=now)

    def outcome_of(self, delivery: Delivery, error: BaseException, now: UnixMs) -> Failure | Signal:
        """What a handler's exception means."""
        signal = find_signal(error)
        if signal is not None:
            return signal
        if delivery._cancel_reason is CancelReason.TIMEOUT:
            text = f"The handler ran over its limit of {self._consumer.timeout_ms} ms and was stopped."
            return Failure(kind=FailureKind.TRANSIENT, code="TIMEOUT", text=text, error_type="TimeoutError")
        match error:
            case ChildLostError():
                return Failure(kind=FailureKind.TRANSIENT, code=WORKER_LOST, text=str(error))
            case asyncio.CancelledError():
                text = "The handler was cancelled from inside (CancelledError); redrive did not cancel it."
                return Failure(kind=FailureKind.TRANSIENT, code="CANCELLED", text=text, error_type="CancelledError")
            case _:
                return classify(error, self._consumer.rules, now=now, mail_rules=self._consumer.mail_rules)

    def failed(
        self, delivery: Delivery, outcome: Failure | Signal, error: BaseException | None, *, now: UnixMs
    ) -> Ended:
        """The attempt failed or asked for its end; core decides which."""
        duration_ms = round(self._clock.monotonic_ms() - delivery._started_ms)
        failure = outcome if isinstance(outcome, Failure) else _failure_of_signal(outcome)
        try:
            settled = decide(
                outcome,
                attempt=delivery.attempt,
                retry=delivery._retry,
                now=now,
                u=self._draw(),
                body=self._next_body(delivery),
                has_kept=delivery._kept is not None,
                history=delivery._taken.received.history,
            )
        except Exception as broken:  # noqa: BLE001 - the consumer's own backoff may raise anything
            settled = self._broken_policy(delivery, broken, now)
        if isinstance(settled, settlement.Requeue):
            end = End(taken=delivery._taken, settlement=settled)
            return Ended(delivery=delivery, end=end, duration_ms=duration_ms, failure=failure)
        entry = self._entry(delivery, failure, now=now, duration_ms=duration_ms, error=error)
        if isinstance(settled, settlement.DeadLetter):
            reason = self._worker_lost(settled.reason) if failure.code == WORKER_LOST else settled.reason
            return self._dead(delivery, reason, entry=entry, failure=failure, now=now, duration_ms=duration_ms)
        assert isinstance(settled, settlement.Retry), settled
        asked_ms = settled.due_at - now
        delay_ms = self._carried(asked_ms)
        if delay_ms != asked_ms:
            settled = dataclasses.replace(settled, due_at=now + delay_ms)
        entry = dataclasses.replace(entry, next_delay_ms=delay_ms)
        is_told = delay_ms != asked_ms and _asked_for(outcome)
        return Ended(
            delivery=delivery,
            end=End(taken=delivery._taken, settlement=settled, entry=entry),
            duration_ms=duration_ms,
            failure=failure,
            asked_delay_ms=asked_ms if is_told else None,
        )

    # ------------------------------------------------------------------------------------------- parts

    def _carried(self, delay_ms: Millis) -> Millis:
        """The delay the queue's wiring has for this one."""
        if self._retry_wiring is None:
            return delay_ms
        return way_back(self._retry_wiring, delay_ms, with_ladder=self._with_ladder).delay_ms

    def _next_body(self, delivery: Delivery) -> bytes | None:
        name, kept = self._consumer.attempt_field, delivery._kept
        if name is None:
            return kept
        return with_attempt(delivery.message.body if kept is None else kept, name, delivery.attempt + 1)

    @staticmethod
    def _last_message(delivery: Delivery) -> Message:
        """The message as a dead letter keeps it, with what its last attempt kept."""
        message = delivery.message
        if delivery._kept is None:
            return message
        return dataclasses.replace(message, body=delivery._kept, original=message.original_body)

    @staticmethod
    def _worker_lost(reason: Reason) -> Reason:
        return Reason(code=WORKER_LOST, text=reason.text)

    def _broken_policy(self, delivery: Delivery, broken: Exception, now: UnixMs) -> settlement.Settlement:
        text = f"The consumer's policy raised {error_type(broken)}: {error_text(broken)}"
        reason = Reason(code="POLICY_FAILED", text=text)
        if delivery.attempt >= delivery.max_attempts or isinstance(broken, ConfigurationError):
            return settlement.DeadLetter(reason=reason)
        return settlement.Retry(due_at=now + BROKEN_POLICY_DELAY_MS, reason=reason)

    def _entry(
        self,
        delivery: Delivery,
        failure: Failure,
        *,
        now: UnixMs,
        duration_ms: Millis,
        error: BaseException | None = None,
    ) -> Attempt:
        return Attempt(
            attempt=delivery.attempt,
            outcome=AttemptOutcome.FAILED,
            at=now - duration_ms,
            duration_ms=duration_ms,
            error_code=failure.code,
            error_type=failure.error_type,
            error_text=failure.text,
            traceback=None if error is None else traceback_tail(error),
            worker=self._worker,
        )

    def _dead(
        self,
        delivery: Delivery,
        reason: Reason,
        *,
        entry: Attempt | None,
        failure: Failure | None,
        now: UnixMs,
        duration_ms: Millis | None = None,
    ) -> Ended:
        """A dead letter; `entry` None: the handler did not run in this start, so one attempt less was made."""
        taken, consumer = delivery._taken, self._consumer
        reason = Reason(code=consumer.codes.get(reason.code, reason.code), text=reason.text)
        history = taken.received.history
        letter = letter_of(
            self._last_message(delivery),
            system=self._system,
            version=self._version,
            queue=consumer.queue,
            dead_letter_queue=consumer.dead_letter_queue,
            reason=reason,
            attempt=delivery.attempt if entry is not None else max(0, delivery.attempt - 1),
            history=history if entry is None else (*history, entry),
            now=now,
            position=taken.received.position,
            cycle=taken.verdict.cycle if isinstance(taken.verdict, Acquired) else None,
            failure=failure,
            ttl_ms=consumer.letter_ttl_ms,
        )
        end = End(
            taken=taken,
            settlement=settlement.DeadLetter(reason=reason),
            entry=entry,
            letter=letter,
            claim_expires_at=letter.expires_at,
        )
        return Ended(delivery=delivery, end=end, duration_ms=duration_ms, failure=failure)


def _letter_of(message: Message) -> str | None:
    """The letter a redriven copy came from."""
    letter_id = message.headers.get(HEADER_LETTER) if message.headers else None
    return letter_id if isinstance(letter_id, str) else None


def _asked_for(outcome: Failure | Signal) -> bool:
    """Whether the delay is somebody's wish, not just the policy's backoff."""
    if isinstance(outcome, Failure):
        return outcome.retry_after_ms is not None
    return isinstance(outcome, RetryLater) and outcome.delay_ms is not None


def is_hand_back(ended: Ended) -> bool:
    """Whether this end only says that the worker stopped."""
    settled = ended.end.settlement
    return isinstance(settled, settlement.Requeue) and settled.reason.code == SHUTDOWN


def traceback_tail(error: BaseException) -> str:
    """The last frames of where it was raised, without redrive's own first one; at most `TRACEBACK_BYTES`."""
    from_child = getattr(error, TRACEBACK_NOTE, None)
    if isinstance(from_child, str):
        return cut_head(from_child, TRACEBACK_BYTES)
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return cut_head("".join(traceback.format_tb(frames, limit=-TRACEBACK_FRAMES)), TRACEBACK_BYTES)


def _failure_of_signal(signal: Signal) -> Failure:
    """A signal as a history entry shows it."""
    match signal:
        case DeadLetter():
            return Failure(kind=FailureKind.PERMANENT, code=signal.code, text=signal.reason)
        case RetryLater():
            return Failure(kind=FailureKind.TRANSIENT, code="RETRY_LATER", text=signal.reason or "RETRY_LATER")
        case _:
            return failure_of_unknown(signal)
