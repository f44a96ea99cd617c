"""A courier that sends signed webhooks over HTTP."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ANSWER_WAIT_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the gateway said."""

    status: int
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Courier:
    """One sender: its name at the gateway, and the secret it signs with."""

    name: str
    secret: str = field(repr=False)
    port: int

    def send(self, webhook: Mapping[str, Any]) -> Answer:
        """Sign and post one webhook."""
        body = json.dumps(webhook).encode()
        timestamp = str(int(time.time()))
        signature = hmac.new(self.secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "X-Signature-Timestamp": timestamp,
            "X-Signature": f"sha256={signature}",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_WAIT_S)
        try:
            connection.request("POST", f"/webhooks/{self.name}", body=body, headers=headers)
            response = connection.getresponse()
            return Answer(status=response.status, document=json.loads(response.read()))
        finally:
            connection.close()


def webhook(event_id: str, status: str) -> dict[str, Any]:
    """What a courier tells about a shipment."""
    number = event_id.rpartition("-")[2]
    return {
        "eventId": event_id,
        "eventType": "shipment.status.updated",
        "occurredAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "payload": {"shipmentId": f"SHP-{number}", "orderId": f"ORD-{number}", "status": status},
    }
