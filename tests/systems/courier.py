"""What the tests of system A share: a fresh copy of the example under an environment, and its signed webhooks."""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

SECRET = "courier-secret"
SECRETS = json.dumps({"courier-x": ["next-secret", SECRET]})
MAIN_QUEUE = "courier-events-main"
DLQ_QUEUE = "courier-events-dlq"
POLICY_NAMES = (
    "RETRY_MAX_ATTEMPTS",
    "RETRY_BACKOFF_BASE_MS",
    "RETRY_BACKOFF_MULTIPLIER",
    "RETRY_JITTER_PERCENT",
    "DLQ_TTL_DAYS",
    "WEBHOOK_TOLERANCE_SECONDS",
    "COURIER_SECRETS",
    "COURIER_SECRETS_FILE",
    "DOWNSTREAM_URL",
    "DOWNSTREAM_TIMEOUT_MS",
    "REDRIVE_BROKER",
    "REDRIVE_STORE",
)


@contextmanager
def courier(**environment: str) -> Iterator[ModuleType]:
    """`examples.courier`, imported anew with exactly these of its variables set."""
    kept = {name: os.environ.pop(name) for name in POLICY_NAMES if name in os.environ}
    os.environ.update(environment)
    _forget()
    try:
        yield importlib.import_module("examples.courier")
    finally:
        _forget()
        for name in environment:
            os.environ.pop(name, None)
        os.environ.update(kept)


def _forget() -> None:
    for name in [name for name in sys.modules if name == "examples.courier" or name.startswith("examples.courier.")]:
        del sys.modules[name]


def webhook(**members: Any) -> bytes:
    """A courier's body; a member given as None is left out."""
    body = {
        "eventId": "evt-1",
        "eventType": "shipment.status.updated",
        "payload": {"shipmentId": "SHP-1", "orderId": "ORD-1", "status": "in_transit"},
        **members,
    }
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def signed(body: bytes, *, timestamp: int, secret: str = SECRET, request_id: str | None = None) -> dict[str, str]:
    """The headers of a signed webhook."""
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"x-signature-timestamp": str(timestamp), "x-signature": f"sha256={digest}"}
    return headers if request_id is None else {**headers, "x-request-id": request_id}
