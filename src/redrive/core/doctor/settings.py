"""What the settings alone say about how messages are kept."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.core.doctor.finding import Finding, Level

RABBITMQ = frozenset({"amqp", "amqps"})
REDIS = frozenset({"redis", "rediss"})
HAS_NO_STORE = RABBITMQ | REDIS
"""Brokers whose letters lie in a store beside them."""


def check_settings(*, broker: str, store: str, durability: str, strict: bool) -> Iterator[Finding]:
    """`broker`, `store`: the schemes of their URLs; `durability`: the setting of that name."""
    if broker == "memory":
        yield Finding(
            code="memory_only",
            level=Level.ERROR if strict else Level.WARNING,
            text="The broker is this process's memory (memory://).",
            risk="Every message and every dead letter is gone when the process ends.",
            remedy='Set broker = "sqlite:///app.db", or name a server.',
        )
    has_file = broker == "sqlite" or (broker in HAS_NO_STORE and store == "sqlite")
    if has_file and durability == "normal":
        yield Finding(
            code="durability_normal",
            level=Level.ERROR if strict else Level.WARNING,
            text='The file is not synced at every commit (durability = "normal").',
            risk="A power cut loses the last moments: messages accepted then, and what was known of handled ones.",
            remedy='Set durability = "full".',
        )
    if broker in REDIS and store == "sqlite":
        yield Finding(
            code="letters_are_local",
            level=Level.INFO,
            text="Dead letters lie in a file of this host; the broker serves every host.",
            risk="Commands and metrics on another host do not see them.",
        )
    if broker in RABBITMQ and store == "sqlite":
        yield Finding(
            code="store_is_local",
            level=Level.WARNING,
            text="Claims and dead letters lie in a file of this host; the broker serves every host.",
            risk="Workers on two hosts do not see each other's claims: a redelivered message may be handled twice.",
            remedy="Run the workers of one app on one host.",
        )
    if broker in RABBITMQ:
        yield Finding(
            code="topology_not_checked",
            level=Level.INFO,
            text="Where the topology of a RabbitMQ loses messages is another command's business.",
            risk="Not looked at here.",
            remedy="redrive topology verify MODULE:APP",
        )
