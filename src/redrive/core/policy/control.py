"""Control: what a person changes of a queue's fairness while workers run.

The consumer's own `Fair` is what holds without it. A control is kept in a store that all workers see; each reads it
every few seconds and goes on with `controlled(fair, control)`. Taking it away brings the consumer's own word back.

*Source*: system E, Runbooks: change the batch limit and a tenant's own rate limit live.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

from redrive.core.policy.fair import MAX_BATCH, Fair
from redrive.core.policy.fairness import group_of
from redrive.core.policy.flow import Rate, parse_rate
from redrive.core.units import UnixMs
from redrive.errors import ConfigurationError, SchemaTooNewError

SCHEMA: Final = 1
MAX_RATES: Final = 1_000
"""Tenants with a rate of their own in one control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What holds for one queue instead of what its consumer says. `batch` None, and a tenant without a rate here: as
    the consumer says. `rates` as written ("10/min"), by tenant; "*" is every tenant that is not named.

    Raises `ConfigurationError` naming what is wrong.
    """

    queue: str
    batch: int | None = None
    rates: Mapping[str, str] = field(default_factory=dict)
    changed_at: UnixMs = 0
    actor: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.batch is not None and not 1 <= self.batch <= MAX_BATCH:
            raise ConfigurationError(f"The batch limit is {self.batch}: it must be from 1 to {MAX_BATCH}.")
        if len(self.rates) > MAX_RATES:
            raise ConfigurationError(f"{len(self.rates)} tenants with a rate are too many (maximum {MAX_RATES}).")
        parsed_rates(self.rates)

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return self.batch is None and not self.rates


def parsed_rates(rates: Mapping[str, str]) -> dict[str, Rate]:
    """The rates by the tenant's group. Raises `ConfigurationError` naming the tenant."""
    return {
        group_of(tenant): parse_rate(rate, field=f'The rate of tenant "{tenant}"') for tenant, rate in rates.items()
    }


def controlled(fair: Fair, control: Control | None) -> Fair:
    """How the queue's turns are taken now. The same `Fair` where the control changes nothing.

    >>> controlled(Fair(batch=3), Control(queue="mail", batch=5)).batch
    5
    """
    if control is None or control.is_empty:
        return fair
    batch = fair.batch if control.batch is None else control.batch
    if not control.rates:
        return replace(fair, batch=batch)
    own: Any = fair.rate
    return replace(fair, batch=batch, rate={**(own or {}), **parsed_rates(control.rates)})


def merged(control: Control, *, batch: int | None, rates: Mapping[str, str]) -> Control:
    """The control with these changes; what is not named stays."""
    return replace(control, batch=control.batch if batch is None else batch, rates={**control.rates, **rates})


Controls: TypeAlias = list[Control]


class ControlStore(Protocol):
    """Keeps controls where all workers see them. The rules of `redrive.core.ports` hold."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def put(self, control: Control) -> None:
        """The control of its queue from now on; an empty one takes it away."""
        ...

    async def list(self) -> Controls:
        """All there are, by queue."""
        ...


def control_json(control: Control) -> str:
    """As JSON text."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "queue": control.queue,
            "batch": control.batch,
            "rates": dict(control.rates),
            "changed_at": control.changed_at,
            "actor": control.actor,
            "note": control.note,
        }
    )


def control_from_json(text: str | bytes) -> Control:
    """The control of this text. Raises `ConfigurationError` where it is none, `SchemaTooNewError` where a newer redrive
    wrote it.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        if document["schema"] > SCHEMA:
            raise SchemaTooNewError(
                f"A control has schema {document['schema']}; this redrive reads up to {SCHEMA}.",
                hint="Upgrade redrive: pip install --upgrade redrive",
            )
        return Control(
            queue=document["queue"],
            batch=document["batch"],
            rates=dict(document["rates"]),
            changed_at=document["changed_at"],
            actor=document["actor"],
            note=document["note"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"This is no control of a queue: {error!r:.120}.") from error
