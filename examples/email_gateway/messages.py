"""The message of the system, and the mail made of it: the same bytes in every attempt, but for whom it goes to."""

from __future__ import annotations

import email.policy
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Annotated

import msgspec

MAX_RECIPIENTS = 50
"""What SES takes in one call."""

Address = Annotated[str, msgspec.Meta(min_length=3, max_length=320, pattern=r"^[!-;=?A-~]+@[!-;=?A-~]+$")]
"""ASCII: what every server takes, without an extension that some of them have."""


class EmailJob(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One job as the handler gets it. A job without a required field is dead-lettered as invalid."""

    outbox_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    company_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    sender: Address = msgspec.field(name="from")
    to: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1, max_length=MAX_RECIPIENTS)]
    subject: str
    text: str
    enqueued_at: Annotated[datetime, msgspec.Meta(tz=True)]


def mail_of(job: EmailJob) -> bytes:
    """The mail. Its `Message-ID` comes from the outbox id: a repeat can be recognised by whoever gets it twice."""
    mail = EmailMessage(policy=email.policy.SMTP)
    mail["From"] = job.sender
    mail["To"] = ", ".join(job.to)
    mail["Subject"] = " ".join(job.subject.split())
    mail["Message-ID"] = f"<{job.outbox_id}@{job.sender.rpartition('@')[2]}>"
    mail["Date"] = format_datetime(job.enqueued_at.astimezone(UTC))
    mail.set_content(job.text)
    return mail.as_bytes()
