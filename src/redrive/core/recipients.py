"""Recipients: one message to several addresses, each with its own fate, as a value that is kept with the message.

    waiting ─accepted→ sent          (never written to again, also after a redrive)
       ├─refused for good→ refused   (told once; the message goes on for the others)
       └─refused for now→ waiting    (the next attempt is for these alone)

A server answers for each recipient (RCPT) and then for the message (DATA); a message is sent to those accepted by both.
So an attempt has up to four outcomes at once, and what it means for the message is: done when nobody waits and somebody
was reached; dead when nobody was; else another attempt, for those who wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

from redrive.core.policy.catalogue.mail import NO_RULES, SUPPRESSING, MailRows
from redrive.core.policy.catalogue.smtp import classify_reply
from redrive.core.policy.classify_mail import worst
from redrive.core.policy.failure import Failure, FailureKind, Scope

KEPT: Final = "recipients"
"""Under which name `document` belongs into `delivery.keep`."""

MAX_RECIPIENTS: Final = 1_000
MAX_TEXT_CHARS: Final = 300
"""Of a reply, kept with the message."""


class RecipientState(StrEnum):
    """Where one recipient stands."""

    WAITING = "waiting"
    SENT = "sent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """One address. `code` and `text`: the last refusal; `suppress`: the address itself is bad for good."""

    address: str
    state: RecipientState = RecipientState.WAITING
    code: str | None = None
    text: str | None = None
    suppress: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipients:
    """All recipients of one message. `failures`: what was said of those who still wait, in the last attempt."""

    each: tuple[Recipient, ...]
    failures: tuple[Failure, ...] = ()

    @classmethod
    def of(cls, addresses: Iterable[str], kept: Mapping[str, Any] | None = None) -> Self:
        """The recipients of a message, with what `document` kept of an earlier attempt (`delivery.kept`). An address
        that stands twice is one. What was kept of others, or is junk, is left out.
        """
        found = kept.get(KEPT) if isinstance(kept, Mapping) else None
        before = found if isinstance(found, Mapping) else {}
        unique = tuple(dict.fromkeys(addresses))[:MAX_RECIPIENTS]
        return cls(each=tuple(_from_document(address, before.get(address)) for address in unique))

    @property
    def waiting(self) -> tuple[str, ...]:
        """Whom to send to now."""
        return tuple(each.address for each in self.each if each.state is RecipientState.WAITING)

    def in_state(self, state: RecipientState) -> tuple[Recipient, ...]:
        """Those in this state."""
        return tuple(each for each in self.each if each.state is state)

    def after(
        self, *, sent: Iterable[str] = (), refused: Mapping[str, Any] | None = None, rules: MailRows = NO_RULES
    ) -> Self:
        """After an attempt: `sent` got the message; `refused` maps an address to the server's (code, text), as smtplib
        and aiosmtplib give it. Of others nothing is known, so they go on waiting.
        """
        reached = frozenset(sent)
        failures = {address: _failure(reply, rules) for address, reply in (refused or {}).items()}
        each = tuple(_moved(one, reached, failures.get(one.address)) for one in self.each)
        waiting = {one.address for one in each if one.state is RecipientState.WAITING}
        open_ones = tuple(failure for address, (failure, _) in failures.items() if address in waiting)
        return replace(self, each=each, failures=open_ones)

    def failure(self) -> Failure | None:
        """What the attempt means for the message: None, it is done; permanent, nobody was or will be reached; else it
        is tried again for those who wait.
        """
        if self.waiting:
            if self.failures:
                return replace(worst(self.failures), text=self._told(self.failures[0].text))
            return Failure(kind=FailureKind.TRANSIENT, code="RECIPIENTS_WAITING", text=self._told("not tried yet"))
        refused = self.in_state(RecipientState.REFUSED)
        if not refused or self.in_state(RecipientState.SENT):
            return None
        return Failure(
            kind=FailureKind.PERMANENT,
            code=refused[0].code or "RECIPIENTS_REFUSED",
            text=self._told(refused[0].text or "refused"),
            scope=Scope.RECIPIENT,
        )

    def document(self) -> dict[str, Any]:
        """To be kept: `delivery.keep(**recipients.document())`. Those who wait and were never refused are left out."""
        return {KEPT: {each.address: _document(each) for each in self.each if each != Recipient(address=each.address)}}

    def _told(self, text: str) -> str:
        if len(self.each) == 1:
            return text
        counts = ", ".join(f"{len(found)} {state}" for state in RecipientState if (found := self.in_state(state)))
        return f"{text} ({len(self.each)} recipients: {counts})"


def _moved(one: Recipient, reached: frozenset[str], failed: tuple[Failure, bool] | None) -> Recipient:
    if one.state is not RecipientState.WAITING:
        return one
    if failed is not None:
        failure, suppress = failed
        state = RecipientState.WAITING if failure.is_retryable or failure.spares_message else RecipientState.REFUSED
        return replace(one, state=state, code=failure.code, text=failure.text[:MAX_TEXT_CHARS], suppress=suppress)
    return replace(one, state=RecipientState.SENT) if one.address in reached else one


def _failure(reply: Any, rules: MailRows) -> tuple[Failure, bool]:
    """What a refusal means, and whether the address is bad for good."""
    if isinstance(reply, Failure):
        return reply, reply.kind is FailureKind.PERMANENT and reply.cause in SUPPRESSING
    code, text = reply if isinstance(reply, tuple) and len(reply) == 2 else (0, reply)  # noqa: PLR2004 - a pair
    is_code = isinstance(code, int) and not isinstance(code, bool)
    verdict = classify_reply(text if isinstance(text, str | bytes) else "", code=code if is_code else 0, rules=rules)
    return verdict.failure, verdict.suppress


def _document(one: Recipient) -> dict[str, Any]:
    told = {"state": str(one.state), "code": one.code, "text": one.text, "suppress": one.suppress or None}
    return {name: value for name, value in told.items() if value is not None}


def _from_document(address: str, document: Any) -> Recipient:
    if not isinstance(document, Mapping) or document.get("state") not in list(RecipientState):
        return Recipient(address=address)
    code, text = document.get("code"), document.get("text")
    return Recipient(
        address=address,
        state=RecipientState(document["state"]),
        code=code if isinstance(code, str) else None,
        text=text if isinstance(text, str) else None,
        suppress=document.get("suppress") is True,
    )
