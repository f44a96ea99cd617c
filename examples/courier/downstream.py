"""The service behind the worker, reached over plain HTTP."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from redrive import ConfigurationError

from .messages import CourierEvent

INVALID_PAYLOAD = frozenset({400, 413, 422})
"""Statuses by which the service says that this payload will never do; everything else may pass later."""


class PayloadRefused(Exception):
    """The service will never take this payload. Permanent, by the consumer's rule."""


class DownstreamUnavailable(Exception):
    """The service answered, but not with success. Worth another attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downstream:
    """Where events go, and how long one attempt waits for an answer."""

    url: str
    timeout_s: float

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Downstream:
        """`DOWNSTREAM_URL` and `DOWNSTREAM_TIMEOUT_MS`. Raises `ConfigurationError` naming the variable."""
        url = environment.get("DOWNSTREAM_URL", "http://127.0.0.1:9000/events")
        timeout_ms = environment.get("DOWNSTREAM_TIMEOUT_MS", "5000")
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigurationError(f"DOWNSTREAM_URL is {url!r}: it must be an http:// URL.")
        if not timeout_ms.isdecimal() or int(timeout_ms) < 1:
            raise ConfigurationError(f"DOWNSTREAM_TIMEOUT_MS is {timeout_ms!r}: it must be a whole number above 0.")
        return cls(url=url, timeout_s=int(timeout_ms) / 1_000)

    def send(self, event: CourierEvent, *, attempt: int) -> None:
        """Post one event; returns when the service has taken it.

        A refused connection and a timeout raise what Python raises for them, an answer that is no HTTP too; all of
        those are transient. The key goes along, so that the service can recognise a repeat.
        """
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self.timeout_s)
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": event.idempotency_key.encode("utf-8").decode("latin-1"),
            "X-Request-Id": event.trace_id.encode("utf-8").decode("latin-1"),
            "X-Attempt": str(attempt),
        }
        try:
            connection.request("POST", parts.path or "/", body=msgspec.json.encode(event), headers=headers)
            response = connection.getresponse()
            text = response.read(200).decode("utf-8", "replace")
        finally:
            connection.close()
        if response.status in INVALID_PAYLOAD:
            raise PayloadRefused(f"The service refused the payload: {response.status} {text}")
        if not 200 <= response.status < 300:
            raise DownstreamUnavailable(f"The service answered {response.status} {text}")
