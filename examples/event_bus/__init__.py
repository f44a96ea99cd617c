"""event-bus: every service of the warehouse gets every event; each retries, and gives up, for itself alone.

    wms.main-exchange ─┬─> wms.queue.wms-cincout ──> book (Python, below)
                       └─> wms.queue.wms-labels ───> POST LABELS_URL (any language; `label_service.py` is one)

    failed: nack ─> wms.retry-exchange.<service> ─> wms.retry-queue.<service> (5 s) ─> back to that service only
    given up, after the first run and 10 retries: wms.dlq.<service>

`redrive work examples.event_bus:app` runs both consumers. What may differ between two installations is an environment
variable (README.md beside this file).
"""

from __future__ import annotations

import os

from redrive import Delivery, Fixed, Redrive, Requeue, Retry, fanout_bus
from redrive.push import Waiting, push_to, status_handler

from .alerts import subscribe_alerts
from .stock import Movement, book_movement

SERVICES = ("wms-cincout", "wms-labels")
EXCHANGE = "wms.main-exchange"
CINCOUT, LABELS = (f"wms.queue.{service}" for service in SERVICES)
LABELS_URL = os.environ.get("LABELS_URL", "http://127.0.0.1:8081/labels")

MAX_RETRIES = 10
delay = f"{os.environ.get('BUS_RETRY_DELAY_MS', '5000')}ms"
policy = Retry(max_attempts=1 + MAX_RETRIES, backoff=Fixed(delay))

app = Redrive(
    "event-bus",
    broker=os.environ.get("REDRIVE_BROKER", "sqlite:///event_bus.db"),
    topology=fanout_bus(*SERVICES, delay=delay, safe=os.environ.get("BUS_SAFE") == "1"),
)
subscribe_alerts(app)

waiting = Waiting()


async def book(movement: Movement, delivery: Delivery) -> int:
    """Write one movement of goods into the stock ledger. Answers with a status, as an HTTP service would."""
    left_ms = waiting.left_ms(delivery.message, app.clock.now())
    if left_ms:
        raise Requeue(left_ms / 1_000, "Its processAfterDelayMs has not passed.")
    async with delivery.transaction() as tx:
        book_movement(tx, movement, event_id=delivery.message.id)
    return 204


app.consumer(CINCOUT, retry=policy, breaker=None, http_status=True)(status_handler(book))

push_to(
    app,
    LABELS,
    LABELS_URL,
    secrets=os.environ.get("LABELS_SECRETS", "").split(),
    allow_private=True,
    retry=policy,
    breaker=None,
)
