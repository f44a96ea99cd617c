"""Reliable message consumption: retries that back off, dead letters that keep their reason, effects that happen once.

    from redrive import Redrive, Retry, Exponential

    app = Redrive("orders", broker="sqlite:///orders.db")

    @app.consumer("orders.created", retry=Retry(max_attempts=5, backoff=Exponential("1s", cap="60s")))
    async def charge(order: dict) -> None: ...

Everything an app needs is here; beside it are `redrive.ingest` (webhooks), `redrive.mail`, `redrive.testing` and
`redrive.errors` (the errors of commands and of the service, too). What is in none of these may change.

A name is loaded when it is first used: the command line starts without the worker, a publisher without the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redrive.core.letters.letter import Letter
    from redrive.core.message import Message
    from redrive.core.policy.auto_redrive import AutoRedrive
    from redrive.core.policy.backoff import Decorrelated, Exponential, Fixed, Tiers
    from redrive.core.policy.classify import Rule
    from redrive.core.policy.fair import Fair
    from redrive.core.policy.flow import BreakerPolicy
    from redrive.core.policy.retry import Retry
    from redrive.core.ports import Published
    from redrive.core.signals import DeadLetter, Requeue, RetryLater
    from redrive.core.topology.model import Topology
    from redrive.core.topology.recipes import delay_levels, fanout_bus, retry_per_queue, tiered_retry
    from redrive.errors import (
        BrokerUnavailableError,
        ConfigurationError,
        InvalidMessageError,
        LeaseLostError,
        MissingExtraError,
        RedriveError,
        SchemaTooNewError,
        StorageCorruptError,
        UnsupportedError,
    )
    from redrive.runtime.app import Redrive
    from redrive.runtime.delivery import Delivery
    from redrive.runtime.events import Event
    from redrive.runtime.settings import Settings
    from redrive.runtime.worker import Worker

__all__ = [
    "AutoRedrive",
    "BreakerPolicy",
    "BrokerUnavailableError",
    "ConfigurationError",
    "DeadLetter",
    "Decorrelated",
    "Delivery",
    "Event",
    "Exponential",
    "Fair",
    "Fixed",
    "InvalidMessageError",
    "LeaseLostError",
    "Letter",
    "Message",
    "MissingExtraError",
    "Published",
    "Redrive",
    "RedriveError",
    "Requeue",
    "Retry",
    "RetryLater",
    "Rule",
    "SchemaTooNewError",
    "Settings",
    "StorageCorruptError",
    "Tiers",
    "Topology",
    "UnsupportedError",
    "Worker",
    "delay_levels",
    "fanout_bus",
    "retry_per_queue",
    "tiered_retry",
]

_WHERE: Final = {
    "AutoRedrive": "redrive.core.policy.auto_redrive",
    "BreakerPolicy": "redrive.core.policy.flow",
    "BrokerUnavailableError": "redrive.errors",
    "ConfigurationError": "redrive.errors",
    "DeadLetter": "redrive.core.signals",
    "Decorrelated": "redrive.core.policy.backoff",
    "Delivery": "redrive.runtime.delivery",
    "Event": "redrive.runtime.events",
    "Exponential": "redrive.core.policy.backoff",
    "Fair": "redrive.core.policy.fair",
    "Fixed": "redrive.core.policy.backoff",
    "InvalidMessageError": "redrive.errors",
    "LeaseLostError": "redrive.errors",
    "Letter": "redrive.core.letters.letter",
    "Message": "redrive.core.message",
    "MissingExtraError": "redrive.errors",
    "Published": "redrive.core.ports",
    "Redrive": "redrive.runtime.app",
    "RedriveError": "redrive.errors",
    "Requeue": "redrive.core.signals",
    "Retry": "redrive.core.policy.retry",
    "RetryLater": "redrive.core.signals",
    "Rule": "redrive.core.policy.classify",
    "SchemaTooNewError": "redrive.errors",
    "Settings": "redrive.runtime.settings",
    "StorageCorruptError": "redrive.errors",
    "Tiers": "redrive.core.policy.backoff",
    "Topology": "redrive.core.topology.model",
    "UnsupportedError": "redrive.errors",
    "Worker": "redrive.runtime.worker",
    "delay_levels": "redrive.core.topology.recipes",
    "fanout_bus": "redrive.core.topology.recipes",
    "retry_per_queue": "redrive.core.topology.recipes",
    "tiered_retry": "redrive.core.topology.recipes",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
