"""What each domain does with its events. One function a domain; the routing key says what happened.

Every handler writes inside `delivery.transaction()`: its effect, and the events it causes, happen once, with the end of
the message. What cannot be done yet raises an ordinary error, or `RetryLater`; what can never be done, `DeadLetter`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Final

from redrive import DeadLetter, Delivery, RetryLater

from .tables import create_tables
from .timing import scaled

Handler = Callable[[dict[str, Any], Delivery], Awaitable[None]]

EVENTS: Final = "freeflow.events"
FAILED_LOGINS: Final = 5
"""So many in a row lock an account."""

STEPS: Final = {"draft": "review", "review": "approved", "approved": "done"}
"""What a workflow may become, by what it is."""


async def user(event: dict[str, Any], delivery: Delivery) -> None:
    """The directory of users: `user.created`, `user.renamed`, `user.deleted`."""
    name, what = str(event["user"]), what_happened(delivery)
    async with delivery.transaction() as tx:
        create_tables(tx)
        if what == "deleted":
            tx.execute("DELETE FROM users WHERE name = ?", (name,))
        elif what == "created":
            tx.execute("INSERT OR REPLACE INTO users VALUES (?, ?)", (name, event.get("mail")))
        elif what == "renamed":
            if tx.execute("UPDATE users SET name = ? WHERE name = ?", (event["to"], name)).rowcount == 0:
                raise LookupError(f"there is no user {name}: created elsewhere, not here yet")
        else:
            raise DeadLetter(f"a user cannot be {what}", "UNKNOWN_EVENT")


async def auth(event: dict[str, Any], delivery: Delivery) -> None:
    """Failed logins: the fifth in a row locks the account and tells its owner."""
    name, what = str(event["user"]), what_happened(delivery)
    async with delivery.transaction() as tx:
        create_tables(tx)
        if what == "succeeded":
            tx.execute("DELETE FROM logins WHERE user = ?", (name,))
            return
        tx.execute("INSERT INTO logins VALUES (?, 1) ON CONFLICT (user) DO UPDATE SET failures = failures + 1", (name,))
        (failures,) = tx.execute("SELECT failures FROM logins WHERE user = ?", (name,)).fetchone()
        if failures == FAILED_LOGINS:
            publish(
                tx, "notification.locked", {"to": name, "text": f"{failures} failed logins: locked"}, cause=delivery
            )
            publish(tx, "audit.locked", {"user": name}, cause=delivery)


async def alarm(event: dict[str, Any], delivery: Delivery) -> None:
    """The board of alarms; a critical one is passed on at once."""
    source, severity = str(event["source"]), event.get("severity", "minor")
    async with delivery.transaction() as tx:
        create_tables(tx)
        if what_happened(delivery) == "cleared":
            tx.execute("DELETE FROM alarms WHERE source = ?", (source,))
            return
        is_new = tx.execute("SELECT 1 FROM alarms WHERE source = ?", (source,)).fetchone() is None
        tx.execute("INSERT OR REPLACE INTO alarms VALUES (?, ?)", (source, severity))
        if is_new and severity == "critical":
            publish(tx, "notification.alarm", {"to": "operations", "text": f"critical: {source}"}, cause=delivery)


async def document(event: dict[str, Any], delivery: Delivery) -> None:
    """A search index: which words stand in which document how often."""
    title = str(event["title"])
    words = Counter(re.findall(r"\w+", str(event["text"]).lower()))
    async with delivery.transaction() as tx:
        create_tables(tx)
        tx.execute("DELETE FROM words WHERE title = ?", (title,))
        for word, count in words.items():
            tx.execute("INSERT INTO words VALUES (?, ?, ?)", (word, title, count))


async def workflow(event: dict[str, Any], delivery: Delivery) -> None:
    """Steps in their order. One that comes before its time waits for the tier above two minutes."""
    name, to = str(event["workflow"]), str(event["to"])
    async with delivery.transaction() as tx:
        create_tables(tx)
        row = tx.execute("SELECT state FROM workflows WHERE name = ?", (name,)).fetchone()
        state = None if row is None else row[0]
        if to == "draft" and state is None:
            tx.execute("INSERT INTO workflows VALUES (?, 'draft')", (name,))
        elif to not in {*STEPS, *STEPS.values()}:
            raise DeadLetter(f"no workflow is ever {to}", "UNKNOWN_STATE")
        elif state is None or STEPS.get(state) != to:
            raise RetryLater(scaled("2m"), f"{name} is {state}, its step to {to} comes too early")
        else:
            tx.execute("UPDATE workflows SET state = ? WHERE name = ?", (to, name))
            publish(tx, "audit.step", {"workflow": name, "to": to}, cause=delivery)


async def notification(event: dict[str, Any], delivery: Delivery) -> None:
    """A mail into the outgoing folder, named after the message: sent twice, it is one file."""
    mail = EmailMessage()
    mail["To"], mail["Subject"] = str(event["to"]), what_happened(delivery)
    mail["Message-ID"] = f"<{delivery.message.id}@freeflow>"
    mail.set_content(str(event["text"]))
    folder = Path(os.environ.get("FREEFLOW_MAIL", "mail"))
    if not folder.is_dir():
        raise ConnectionError(f'the outgoing folder "{folder}" is not mounted')
    part = folder / f"{delivery.message.id}.part"
    part.write_bytes(mail.as_bytes())
    part.rename(part.with_suffix(".eml"))


async def audit(event: dict[str, Any], delivery: Delivery) -> None:
    """A log in which each entry carries the hash of the one before: what is changed later shows."""
    async with delivery.transaction() as tx:
        create_tables(tx)
        last = tx.execute("SELECT hash FROM audit ORDER BY number DESC LIMIT 1").fetchone()
        entry = json.dumps({"what": delivery.routing_key, **event}, sort_keys=True)
        chained = hashlib.sha256(f"{'' if last is None else last[0]}{entry}".encode()).hexdigest()
        tx.execute("INSERT INTO audit (entry, hash) VALUES (?, ?)", (entry, chained))


DOMAINS: Final[dict[str, Handler]] = {
    "user": user,
    "auth": auth,
    "alarm": alarm,
    "document": document,
    "workflow": workflow,
    "notification": notification,
    "audit": audit,
}


def what_happened(delivery: Delivery) -> str:
    """The part of the original routing key behind the domain; a retry does not change it."""
    return delivery.routing_key.partition(".")[2]


def publish(tx: Any, routing_key: str, event: dict[str, Any], *, cause: Delivery) -> None:
    """Send an event with this transaction. Its id comes from the message that caused it."""
    message_id = hashlib.sha256(f"{cause.message.id}:{routing_key}".encode()).hexdigest()[:32]
    tx.publish(routing_key, event, exchange=EVENTS, message_id=message_id)
