"""Taking webhooks in over HTTP: verify the signature, enqueue durably, then answer.

`Gateway` is an ASGI app; a signature scheme is a value; a build function says what is enqueued.
"""

from redrive.ingest.gateway import Gateway
from redrive.ingest.schemes import GitHub, StandardWebhooks, Stripe, TimestampedHmac
from redrive.ingest.signatures import RawHeaders, Refusal, Scheme, Verified
from redrive.ingest.sources import SecretsFile, Source, Sources, parse_secrets, secrets_from
from redrive.ingest.webhook import (
    Build,
    Envelope,
    InvalidBody,
    InvalidField,
    Webhook,
    is_identifier,
    json_fields,
    json_text,
    raw_message,
)

__all__ = [
    "Build",
    "Envelope",
    "Gateway",
    "GitHub",
    "InvalidBody",
    "InvalidField",
    "RawHeaders",
    "Refusal",
    "Scheme",
    "SecretsFile",
    "Source",
    "Sources",
    "StandardWebhooks",
    "Stripe",
    "TimestampedHmac",
    "Verified",
    "Webhook",
    "is_identifier",
    "json_fields",
    "json_text",
    "parse_secrets",
    "raw_message",
    "secrets_from",
]
