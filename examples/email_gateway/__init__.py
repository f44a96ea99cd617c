"""email-gateway: mail through SMTP or SES, fair between tenants.

    outbox (your database) ─relay→ email:send ─→ worker ─→ mail server
                                                   └─ given up ─→ email:send:dlq

`python -m examples.email_gateway` is relay and worker in one process; `redrive work examples.email_gateway:app` is a
worker alone, and `python -m examples.email_gateway.relay` a relay. What may differ between two installations is an
environment variable (see README.md beside this file); the policy is read once, when this module is imported.
"""

import asyncio
import os

from redrive import DeadLetter, Delivery, Redrive
from redrive.mail import Failed, MailCause, Recipients, RecipientState, classify_event

from .documents import dead_letter_entry
from .logs import subscribe_log
from .messages import EmailJob, mail_of
from .names import EVENTS_QUEUE, QUEUE
from .outbox import Outbox
from .policy import policy_from
from .sending import sender_from

policy = policy_from(os.environ)
sender = sender_from(os.environ)
outbox = Outbox.from_environment(os.environ)

# A broker named in the environment wins over the embedded file.
app = Redrive("email-gateway", broker=os.environ.get("REDRIVE_BROKER", "sqlite:///email_gateway.db"))


@app.consumer(
    QUEUE,
    retry=policy.retry(),
    concurrency=policy.concurrency,
    rate=policy.rate,
    fair_by=policy.fair(),
    breaker=None,
    idempotency_ttl="30d",
    message_ttl=policy.lifetime,
    dead_letter_queue=policy.dlq_name,
    letter_ttl=policy.letter_ttl,
    max_letters=policy.dlq_max_size,
    letter_document=dead_letter_entry,
)
async def send(job: EmailJob, delivery: Delivery) -> None:
    """Send one mail to those of its recipients who did not get it yet, and mark its row once nobody waits."""
    row = await asyncio.to_thread(outbox.get, job.outbox_id)
    if row is not None and row.status == "SENT":
        return
    known = Recipients.of(job.to, delivery.kept)
    recipients = await not_suppressed(known)
    error = None
    if recipients.waiting:
        done = await sender.send(mail_of(job), sender=job.sender, recipients=recipients.waiting)
        before, error = recipients, done.error
        rules = app.consumers[QUEUE].mail_rules
        recipients = recipients.after(sent=done.sent, refused=done.refused, rules=rules)
        await tell_refused(before, recipients, delivery)
    if recipients.waiting != known.waiting:
        # Only a retry carries this along, and a retry costs an attempt: kept where somebody's state changed.
        delivery.keep(**recipients.document())
    if error is not None:
        raise error
    failure = recipients.failure()
    if failure is not None:
        raise Failed(failure)
    await asyncio.to_thread(outbox.mark_sent, job.outbox_id)


@app.consumer(EVENTS_QUEUE, idempotency_ttl="30d")
async def learn(event: bytes) -> None:
    """What SES told later, with its envelope or without: addresses that are bad, or complained, get no more mail."""
    verdicts = classify_event(event)
    if not verdicts:
        raise DeadLetter("this is no event of SES that speaks of a recipient", code="NO_SES_EVENT")
    for verdict in verdicts:
        if verdict.suppress and verdict.failure is not None:
            await asyncio.to_thread(outbox.suppress, verdict.recipient, f"{verdict.cause}: {verdict.failure.text}")


async def not_suppressed(recipients: Recipients) -> Recipients:
    """Those who take no more mail are refused without asking a server."""
    found = await asyncio.to_thread(outbox.suppressed, recipients.waiting)
    refused = {address: (550, f"5.1.1 not sent, the address does not exist: {why}") for address, why in found.items()}
    return recipients.after(refused=refused)


async def tell_refused(before: Recipients, after: Recipients, delivery: Delivery) -> None:
    """An event for everyone who was refused for good just now; bad addresses get no more mail."""
    for one in after.in_state(RecipientState.REFUSED):
        if one.address not in before.waiting:
            continue
        app.events.emit(
            "mail.recipient_refused",
            queue=delivery.queue,
            message_id=delivery.message.id,
            tenant=delivery.tenant,
            domain=one.address.rpartition("@")[2],
            error_code=one.code,
            error_text=one.text,
            suppress=one.suppress,
        )
        if one.suppress:
            await asyncio.to_thread(outbox.suppress, one.address, f"{MailCause.BAD_RECIPIENT}: {one.text}")


async def close_outbox() -> None:
    """Give the outbox's file back with the app."""
    outbox.close()


app.on_close(close_outbox)
subscribe_log(app)
