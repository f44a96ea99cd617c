"""courier: a webhook gateway for courier events.

    POST /webhooks/{source} -> gateway-api -> courier-events-main -> gateway-worker -> your HTTP service
                                                                          └─ given up -> courier-events-dlq

`redrive serve examples.courier:app` is gateway-api, `redrive work examples.courier:app` is gateway-worker, and
`redrive up examples.courier:app` is both in one process. Everything that may differ between two installations is an
environment variable (see README.md beside this file); the policy is read once, when this module is imported.
"""

import os
from datetime import timedelta

from redrive import Delivery, Redrive, Rule
from redrive.ingest import Gateway

from .documents import dead_letter_event
from .downstream import Downstream, PayloadRefused
from .messages import CourierEvent, build_message
from .policy import DLQ_QUEUE, MAIN_QUEUE, policy_from, sources_from

policy = policy_from(os.environ)
downstream = Downstream.from_environment(os.environ)

# A broker named in the environment wins over the embedded file.
app = Redrive("courier", broker=os.environ.get("REDRIVE_BROKER", "sqlite:///courier.db"))

gateway = Gateway(
    app,
    MAIN_QUEUE,
    sources=sources_from(os.environ),
    build=build_message,
    tolerance=policy.webhook_tolerance_seconds,
)
app.mount("/webhooks", gateway)


@app.consumer(
    MAIN_QUEUE,
    retry=policy.retry(),
    breaker=None,
    idempotency_ttl="30d",
    dead_letter_queue=DLQ_QUEUE,
    letter_ttl=timedelta(days=policy.dlq_ttl_days),
    rules=[Rule(PayloadRefused, "permanent", "VALIDATION_FAILED")],
    attempt_field="attempt",
    letter_document=dead_letter_event,
)
def deliver(event: CourierEvent, delivery: Delivery) -> None:
    """Hand one event to the service behind. What it raises decides: retried, or dead-lettered with the reason."""
    downstream.send(event, attempt=delivery.attempt)
