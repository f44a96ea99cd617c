"""Failure, attempt, limits and now to a settlement: the one place where a retry becomes a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redrive.core import settlement
from redrive.core.idempotency import Duplicate, InProgress, Verdict
from redrive.core.letters.letter import Attempt, AttemptOutcome
from redrive.core.policy.classify import Failure, FailureKind, failure_of_unknown
from redrive.core.policy.retry import Retry
from redrive.core.settlement import Reason, Settlement
from redrive.core.signals import DeadLetter, Requeue, RetryLater, Signal
from redrive.core.text import clean, code_of, cut
from redrive.core.units import MAX_DELAY_MS, Millis, UnixMs

WAIT_IN_PROGRESS_MIN_MS: Final[Millis] = 100
WAIT_IN_PROGRESS_MAX_MS: Final[Millis] = 5_000
"""A delivery whose key is being handled elsewhere looks again within these bounds: not in a hot loop, and not long
after the other one has finished."""

SPARED_DELAY_MS: Final[Millis] = 1_000
"""A message that a failure of its lane or tenant spared comes back after so long, where that told no time."""

DUPLICATE: Final = Reason(code="DUPLICATE", text="This key was already processed here; the handler did not run.")
IN_PROGRESS: Final = Reason(code="IN_PROGRESS", text="Another delivery of this key is being handled now.")
WORKER_LOST: Final = "WORKER_LOST"
EXPIRED: Final = "EXPIRED"

_EXHAUSTED_NAMES: Final = {"TIMEOUT": "DOWNSTREAM_TIMEOUT_EXHAUSTED", WORKER_LOST: WORKER_LOST}
"""Where the code of an exhausted failure is not simply the failure's code with _EXHAUSTED."""


def exhausted_code(code: str) -> str:
    """The reason code of a message whose last transient failure had this code.

    >>> exhausted_code("TIMEOUT"), exhausted_code("ECONNREFUSED")
    ('DOWNSTREAM_TIMEOUT_EXHAUSTED', 'ECONNREFUSED_EXHAUSTED')
    """
    return _EXHAUSTED_NAMES.get(code, f"{code}_EXHAUSTED")


def decide_start(
    *,
    attempt: int,
    retry: Retry,
    verdict: Verdict | None,
    lease_ms: Millis = WAIT_IN_PROGRESS_MAX_MS,
    expires_at: UnixMs | None,
    history: Sequence[Attempt] = (),
    set_aside: Reason | None = None,
    now: UnixMs,
) -> Settlement | None:
    """What happens to a taken delivery before its handler runs: None is "run it as `attempt`".

    A duplicate is acknowledged; one in progress elsewhere waits and loses no attempt; one that used up its starts
    is WORKER_LOST where its last start never ended; one past `expires_at` is EXPIRED; one that a person has `set_aside`
    is a dead letter of that reason. None of these is an attempt.
    """
    match verdict:
        case Duplicate():
            return settlement.Ack(reason=DUPLICATE)
        case InProgress(lease_until=lease_until):
            return settlement.Requeue(due_at=now + _wait_in_progress(lease_until - now, lease_ms), reason=IN_PROGRESS)
        case _:
            pass
    if attempt > retry.max_attempts:
        return settlement.DeadLetter(reason=_used_up(attempt - 1, retry, history))
    if expires_at is not None and expires_at <= now:
        text = f"The message's lifetime ended {now - expires_at} ms before attempt {attempt} could start."
        return settlement.DeadLetter(reason=Reason(code=EXPIRED, text=text))
    return None if set_aside is None else settlement.DeadLetter(reason=set_aside)


def _wait_in_progress(left_ms: Millis, lease_ms: Millis) -> Millis:
    """About as long as the other delivery has been running since it was last renewed, so that a copy taken beside a
    quick one looks again soon, and beside a slow one seldom; never longer than its lease still runs.
    """
    wait = min(max(lease_ms - left_ms, WAIT_IN_PROGRESS_MIN_MS), max(left_ms, WAIT_IN_PROGRESS_MIN_MS))
    return min(wait, WAIT_IN_PROGRESS_MAX_MS)


def _used_up(made: int, retry: Retry, history: Sequence[Attempt]) -> Reason:
    last = history[-1] if history else None
    if last is None:
        text = f"{made} attempts were counted before this one (maximum {retry.max_attempts}); no failure is on record."
        return Reason(code="ATTEMPTS_EXHAUSTED", text=text)
    if last.outcome is AttemptOutcome.INTERRUPTED:
        text = f"The worker died or lost its lease in attempt {last.attempt}, the last of {retry.max_attempts}."
        return Reason(code=WORKER_LOST, text=text)
    text = last.error_text or "no text was kept"
    return _reason(
        exhausted_code(last.error_code or "ATTEMPTS"), f"{cut(text)} (attempt {made} of {retry.max_attempts})"
    )


def decide(
    outcome: Failure | Signal,
    *,
    attempt: int,
    retry: Retry,
    now: UnixMs,
    u: float,
    body: bytes | None = None,
    has_kept: bool = False,
    history: Sequence[Attempt] = (),
) -> Settlement:
    """How a delivery ends whose handler failed or sent a signal in `attempt`.

    `u` in [0, 1) is the draw for the backoff. `body` replaces the stored body on a retry (`settlement.Retry`).
    A delay told by a server (Retry-After) is honoured at least: the backoff may only lengthen it. A delay asked for
    by `RetryLater` is taken as it is. Nothing waits longer than ten years.

    A failure that spares the message (its lane's, its tenant's) costs no attempt, however often it comes: what bounds
    it is the message's lifetime. With `has_kept` it does cost one: only a retry carries what the handler kept. An
    outcome that was unknown before (`history`) and is so again goes to a person: a third try could be a third effect.
    """
    match outcome:
        case DeadLetter():
            return settlement.DeadLetter(reason=_reason(code_of(outcome.code), outcome.reason))
        case Requeue():
            due_at = now + min(outcome.delay_ms, MAX_DELAY_MS)
            return settlement.Requeue(due_at=due_at, reason=_reason("REQUEUED_BY_HANDLER", outcome.reason))
        case Failure() if outcome.spares_message and not has_kept:
            delay = SPARED_DELAY_MS if outcome.retry_after_ms is None else outcome.retry_after_ms
            return settlement.Requeue(due_at=now + min(delay, MAX_DELAY_MS), reason=_reason(outcome.code, outcome.text))
        case Failure() if outcome.kind is FailureKind.PERMANENT and not outcome.spares_message:
            return settlement.DeadLetter(reason=_reason(outcome.code, outcome.text))
        case Failure() if outcome.kind is FailureKind.UNKNOWN and _was_unknown(outcome, history):
            text = f"{outcome.text} (again without an answer; it may have been done, once or twice)"
            return settlement.DeadLetter(reason=_reason(outcome.code, text))
        case RetryLater():
            reason, wait = _reason("RETRY_LATER", outcome.reason), outcome.delay_ms
            delay = retry.delay_ms(attempt, u) if wait is None else wait
        case Failure():
            reason = _reason(outcome.code, outcome.text)
            delay = max(retry.delay_ms(attempt, u), outcome.retry_after_ms or 0)
        case _:
            return decide(failure_of_unknown(outcome), attempt=attempt, retry=retry, now=now, u=u, body=body)
    if attempt >= retry.max_attempts:
        text = f"{reason.text} (attempt {attempt} of {retry.max_attempts})"
        return settlement.DeadLetter(reason=Reason(code=exhausted_code(reason.code), text=text))
    return settlement.Retry(due_at=now + min(delay, MAX_DELAY_MS), reason=reason, body=body)


def _was_unknown(failure: Failure, history: Sequence[Attempt]) -> bool:
    return any(entry.error_code == failure.code for entry in history)


def _reason(code: str, text: str) -> Reason:
    """A reason that can always be kept: bounded, clean, never empty."""
    kept_code = clean(code) if code.strip() else "UNKNOWN"
    return Reason(code=kept_code, text=cut(text) if text.strip() else kept_code)
