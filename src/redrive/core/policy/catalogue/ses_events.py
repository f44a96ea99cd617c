"""Amazon SES tells later what became of a message: bounces, complaints and the rest, one verdict a recipient.

An event comes as SES writes it, or wrapped by SNS (the event as JSON text inside), or by EventBridge (under `detail`).
What SES calls a bounce's type is its first guess; the receiving server's own words in it (status, diagnosis) say more,
except where the subtype is a plain fact: a full mailbox is transient even under 5.2.2, a suppressed address never is.

Nothing here raises: what is no such event has no verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redrive.core.policy.catalogue.mail import CAUSES, NO_RULES, SUPPRESSING, MailCause, MailRows
from redrive.core.policy.catalogue.smtp import classify_reply
from redrive.core.policy.failure import Failure, FailureKind
from redrive.core.text import code_of, cut

MAX_RECIPIENTS: Final = 1_000
MAX_EVENT_CHARS: Final = 1_048_576
MAX_ENVELOPES: Final = 3
"""SNS inside SQS inside EventBridge; deeper is no event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BounceRow:
    """What a pair of bounce type and subtype means. `is_fact`: the receiving server's words do not change it."""

    type: str
    subtype: str
    kind: FailureKind
    cause: MailCause
    is_fact: bool = False
    source: str = "Amazon SES: contents of bounce notifications"


_T, _P = FailureKind.TRANSIENT, FailureKind.PERMANENT
BOUNCES: Final = (
    BounceRow(type="Undetermined", subtype="Undetermined", kind=_T, cause=MailCause.OTHER),
    BounceRow(type="Permanent", subtype="General", kind=_P, cause=MailCause.BAD_RECIPIENT),
    BounceRow(type="Permanent", subtype="NoEmail", kind=_P, cause=MailCause.BAD_RECIPIENT, is_fact=True),
    BounceRow(type="Permanent", subtype="Suppressed", kind=_P, cause=MailCause.SUPPRESSED, is_fact=True),
    BounceRow(type="Permanent", subtype="OnAccountSuppressionList", kind=_P, cause=MailCause.SUPPRESSED, is_fact=True),
    BounceRow(type="Permanent", subtype="UnsubscribedRecipient", kind=_P, cause=MailCause.SUPPRESSED, is_fact=True),
    BounceRow(type="Transient", subtype="General", kind=_T, cause=MailCause.OTHER),
    BounceRow(type="Transient", subtype="MailboxFull", kind=_T, cause=MailCause.MAILBOX_FULL, is_fact=True),
    BounceRow(type="Transient", subtype="MessageTooLarge", kind=_P, cause=MailCause.CONTENT, is_fact=True),
    BounceRow(type="Transient", subtype="ContentRejected", kind=_P, cause=MailCause.BLOCKED, is_fact=True),
    BounceRow(type="Transient", subtype="AttachmentRejected", kind=_P, cause=MailCause.CONTENT, is_fact=True),
    BounceRow(type="Transient", subtype="CustomTimeoutExceeded", kind=_T, cause=MailCause.NETWORK),
)
"""The same message again would be refused again where its size, content or attachment was the reason: permanent here,
though SES says transient of the address."""

_BY_TYPES: Final = {(row.type.lower(), row.subtype.lower()): row for row in BOUNCES}
_BY_TYPE: Final = {row.type.lower(): row for row in BOUNCES if row.subtype in {"Undetermined", "General"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientVerdict:
    """What one event says of one recipient. `failure` None: delivered. `counts_as_bounce` False: SES did not send at
    all, so the sender's own bounce rate is not touched. `message_id`: SES's, None where the event names none.
    """

    recipient: str
    failure: Failure | None
    cause: MailCause | None
    counts_as_bounce: bool = False
    message_id: str | None = None

    @property
    def suppress(self) -> bool:
        """Whether never to write to this address again."""
        return self.failure is not None and not self.failure.is_retryable and self.cause in SUPPRESSING


def classify_event(event: Any, *, rules: MailRows = NO_RULES) -> tuple[RecipientVerdict, ...]:
    """The verdicts of an event: text, bytes or the parsed object, in its envelope or without."""
    try:
        body = _unwrapped(event)
        return tuple(_verdicts(body, rules)) if body is not None else ()
    except RecursionError:
        return ()


def _unwrapped(event: Any) -> Mapping[str, Any] | None:
    for _ in range(MAX_ENVELOPES + 1):
        event = _parsed(event)
        if not isinstance(event, Mapping):
            return None
        if _kind_of(event):
            return event
        event = next((event[name] for name in ("Message", "detail", "body", "Body") if name in event), None)
    return None


def _parsed(event: Any) -> Any:
    if not isinstance(event, str | bytes):
        return event
    try:
        return json.loads(event[:MAX_EVENT_CHARS])
    except (ValueError, RecursionError):
        return None


def _kind_of(event: Mapping[str, Any]) -> str:
    return _text(event.get("eventType") or event.get("notificationType")).replace(" ", "").lower()


def _verdicts(event: Mapping[str, Any], rules: MailRows) -> Iterator[RecipientVerdict]:
    message_id = _text(_table(event.get("mail")).get("messageId")) or None
    match _kind_of(event):
        case "bounce":
            bounce = _table(event.get("bounce"))
            for each in _tables(bounce.get("bouncedRecipients")):
                yield _bounced(bounce, each, message_id=message_id, rules=rules)
        case "complaint":
            yield from _complained(_table(event.get("complaint")), message_id)
        case "deliverydelay":
            yield from _delayed(_table(event.get("deliveryDelay")), message_id)
        case "reject" | "renderingfailure" as kind:
            told = _table(event.get("reject")) or _table(event.get("failure"))
            text = _text(told.get("reason") or told.get("errorMessage")) or "SES refused the message."
            for address in _addresses(_table(event.get("mail")).get("destination")):
                each = {"emailAddress": address}
                yield _failed(each, _P, MailCause.CONTENT, code=f"SES_{kind.upper()}", text=text, message_id=message_id)
        case "delivery":
            for address in _addresses(_table(event.get("delivery")).get("recipients")):
                yield RecipientVerdict(recipient=address, failure=None, cause=None, message_id=message_id)
        case _:
            return


def _complained(complaint: Mapping[str, Any], message_id: str | None) -> Iterator[RecipientVerdict]:
    text = f"The recipient complained ({_text(complaint.get('complaintFeedbackType')) or 'no kind given'})."
    for each in _tables(complaint.get("complainedRecipients")):
        yield _failed(each, _P, MailCause.COMPLAINT, code="SES_COMPLAINT", text=text, message_id=message_id)


def _delayed(delayed: Mapping[str, Any], message_id: str | None) -> Iterator[RecipientVerdict]:
    why = _text(delayed.get("delayType")) or "no reason given"
    for each in _tables(delayed.get("delayedRecipients")):
        text = _diagnosis(each) or f"Delivery is delayed ({why})."
        yield _failed(each, _T, MailCause.OTHER, code="SES_DELAYED", text=text, message_id=message_id)


def _bounced(
    bounce: Mapping[str, Any], each: Mapping[str, Any], *, message_id: str | None, rules: MailRows
) -> RecipientVerdict:
    kind, subtype = _text(bounce.get("bounceType")), _text(bounce.get("bounceSubType"))
    row = _BY_TYPES.get((kind.lower(), subtype.lower())) or _BY_TYPE.get(kind.lower()) or BOUNCES[0]
    diagnosis, status = _diagnosis(each), _text(each.get("status"))
    code = f"SES_{code_of(row.type)}_{code_of(row.subtype)}"
    text = " ".join(part for part in (f"{kind or 'Bounce'}/{subtype or '-'}", status, diagnosis) if part)
    verdict, cause = row.kind, row.cause
    if not row.is_fact and (diagnosis or status):
        told = classify_reply(_as_reply(diagnosis, status), rules=rules)
        if told.cause is not MailCause.PROTOCOL_ERROR:
            verdict, cause = told.failure.kind, told.cause
    return _failed(
        each, verdict, cause, code=code, text=text, message_id=message_id,
        counts=row.cause is not MailCause.SUPPRESSED and verdict is _P,
    )  # fmt: skip


def _as_reply(diagnosis: str, status: str) -> str:
    """The server's words as it said them; where only a status is known, as a reply with that."""
    if len(diagnosis) >= 3 and diagnosis[:3].isdigit():  # noqa: PLR2004 - a basic code
        return diagnosis
    digit = status[:1] if status[:1] in {"4", "5"} else "4"
    return f"{digit}50 {status} {diagnosis}"


def _diagnosis(each: Mapping[str, Any]) -> str:
    """What the server said, without the kind of server in front ("smtp; 550 5.3.0 denied")."""
    text = _text(each.get("diagnosticCode")).replace("\r", " ").replace("\n", " ")
    kind, separator, rest = text.partition(";")
    return rest.strip() if separator and kind.strip().lower() in {"smtp", "x-unix", "x-amazon-ses"} else text.strip()


def _failed(
    each: Mapping[str, Any],
    kind: FailureKind,
    cause: MailCause,
    *,
    code: str,
    text: str,
    message_id: str | None,
    counts: bool = False,
) -> RecipientVerdict:
    failure = Failure(kind=kind, code=code, text=cut(text), scope=CAUSES[cause][0], cause=str(cause))
    return RecipientVerdict(
        recipient=_text(each.get("emailAddress")), failure=failure, cause=cause, counts_as_bounce=counts,
        message_id=message_id,
    )  # fmt: skip


def _text(value: Any) -> str:
    return cut(value) if isinstance(value, str) else ""


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _tables(value: Any) -> list[Mapping[str, Any]]:
    found = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()
    return [each for each in found[:MAX_RECIPIENTS] if isinstance(each, Mapping)]


def _addresses(value: Any) -> list[str]:
    found = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()
    return [each for each in found[:MAX_RECIPIENTS] if isinstance(each, str)]
