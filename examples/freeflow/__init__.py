"""freeflow: seven domains on one topic exchange, each with retry tiers of 30 s, 5 min and 30 min.

    freeflow.events ──<domain>.*──> freeflow.<domain> ──> the domain's handler
        ▲                                  │ failed: published, confirmed
        └──<domain>.retry── freeflow.<domain>.retry.<tier> <──<domain>.<tier>── freeflow.events.retry
                                           │ failed after the last tier, or for good: rejected
                                           └─> freeflow.events.dlx ─> freeflow.events.dlq

`redrive work examples.freeflow:app` runs all domains, `--queues freeflow.alarm,freeflow.audit` some of them. Each does
its work in `domains.py`, inside the delivery's own transaction: what comes back through the exchange a second time
changes nothing.
"""

from __future__ import annotations

import os

from redrive import Redrive, Retry, Tiers, tiered_retry

from .domains import DOMAINS
from .timing import scaled

EVENTS = "freeflow.events"
TIERS = ("30s", "5m", "30m")

tiers = {tier: scaled(tier) for tier in TIERS}

app = Redrive(
    "freeflow",
    broker=os.environ.get("REDRIVE_BROKER", "sqlite:///freeflow.db"),
    topology=tiered_retry("freeflow", domains=list(DOMAINS), tiers=tiers, safe=os.environ.get("FREEFLOW_SAFE") == "1"),
)

policy = Retry(max_attempts=1 + len(TIERS), backoff=Tiers(*tiers.values()))

for domain, handler in DOMAINS.items():
    app.consumer(f"freeflow.{domain}", retry=policy, breaker=None)(handler)
