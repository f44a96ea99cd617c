"""Reliable message consumption: retries that back off, dead letters that keep their reason, effects that happen once.

    from redrive import Redrive, Retry, Exponential

    app = Redrive("orders", broker="sqlite:///orders.db")

    @app.consumer("orders.created", retry=Retry(max_attempts=5, backoff=Exponential("1s", cap="60s")))
    async def charge(order: dict) -> None: ...

Everything a user needs is here; what is not here may change.
"""

from redrive.core.message import Message
from redrive.core.policy.backoff import Decorrelated, Exponential, Fixed, Tiers
from redrive.core.policy.classify import Rule
from redrive.core.policy.flow import BreakerPolicy
from redrive.core.policy.retry import Retry
from redrive.core.ports import Published
from redrive.core.signals import DeadLetter, Requeue, RetryLater
from redrive.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    InvalidMessageError,
    LeaseLostError,
    MissingExtraError,
    NotFoundError,
    QueueNotFoundError,
    RedriveError,
)
from redrive.runtime.app import Redrive
from redrive.runtime.delivery import Delivery
from redrive.runtime.settings import Settings
from redrive.runtime.worker import Worker

__all__ = [
    "BreakerPolicy",
    "BrokerUnavailableError",
    "ConfigurationError",
    "DeadLetter",
    "Decorrelated",
    "Delivery",
    "Exponential",
    "Fixed",
    "InvalidMessageError",
    "LeaseLostError",
    "Message",
    "MissingExtraError",
    "NotFoundError",
    "Published",
    "QueueNotFoundError",
    "Redrive",
    "RedriveError",
    "Requeue",
    "Retry",
    "RetryLater",
    "Rule",
    "Settings",
    "Tiers",
    "Worker",
]
