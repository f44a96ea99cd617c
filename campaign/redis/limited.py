"""The app of the campaign of a rate: one consumer, `CAMPAIGN_RATE` starts for all its workers together."""

from __future__ import annotations

import os
from typing import Final

from campaign.app import journal
from campaign.journal import START
from redrive import Delivery, Redrive

QUEUE: Final = "limited"
CONCURRENCY: Final = 20

app = Redrive("campaign")


@app.consumer(QUEUE, rate=os.environ.get("CAMPAIGN_RATE", "100 per 60 s"), concurrency=CONCURRENCY)
async def handle(name: str, delivery: Delivery) -> None:
    """Say that it started, before anything else."""
    journal().write(START, QUEUE, name, attempt=delivery.attempt)
