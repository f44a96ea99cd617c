"""Control: what a person changes of a queue while workers run: its fairness, a pause, what is set aside.

The consumer's own word is what holds without it. A control is kept in a store that all workers see; each reads it
every second and goes by it. Taking it away brings the consumer's own word back.

A *pause* keeps every worker of redrive from taking messages of the queue; what is in hand ends. A *quarantine* sets the
messages of one tenant or key aside: each becomes a dead letter QUARANTINED instead of being handled, at no attempt. A
copy that a person sent back is handled all the same: that is how one tries whether the cause is gone.

Kept as one JSON document, so that a store needs no column for what is added here. A document that pauses or sets aside
has schema 2: an older redrive, which would not go by it, does not overwrite it either. Weak spot: two people who change
one queue within the same milliseconds; the second write holds, whole.

*Source*: system E, Runbooks: change the batch limit and a tenant's own rate limit live.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

from redrive.core.message import HEADER_LETTER, Message
from redrive.core.policy.fair import MAX_BATCH, Fair
from redrive.core.policy.fairness import group_of
from redrive.core.policy.flow import Rate, parse_rate
from redrive.core.settlement import Reason
from redrive.core.units import UnixMs
from redrive.errors import ConfigurationError, SchemaTooNewError

SCHEMA: Final = 2
MAX_RATES: Final = 1_000
"""Tenants with a rate of their own in one control."""
MAX_QUARANTINED: Final = 1_000
"""Tenants and keys set aside in one control."""
MAX_NAME: Final = 1_000
"""Characters of a tenant or key that is set aside."""

QUARANTINED: Final = "QUARANTINED"
"""Reason code of a message that was set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Nothing is taken since then."""

    at: UnixMs = 0
    actor: str = ""
    note: str = ""


class Kind(StrEnum):
    """Whose messages are set aside."""

    TENANT = "tenant"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """The messages of one tenant or key are set aside. `until` None: until somebody releases it."""

    kind: Kind
    name: str
    until: UnixMs | None = None
    at: UnixMs = 0
    actor: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > MAX_NAME:
            raise ConfigurationError(
                f"A {self.kind} of {len(self.name)} characters cannot be set aside: it has 1 to {MAX_NAME}."
            )

    def holds(self, now: UnixMs) -> bool:
        """Whether its time is not over."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What holds for one queue instead of what its consumer says. `batch` None, and a tenant without a rate here: as
    the consumer says. `rates` as written ("10/min"), by tenant; "*" is every tenant that is not named.

    `changed_at`, `actor` and `note` are of the last change; a pause and each quarantine have their own.

    Raises `ConfigurationError` naming what is wrong.
    """

    queue: str
    batch: int | None = None
    rates: Mapping[str, str] = field(default_factory=dict)
    paused: Pause | None = None
    quarantined: tuple[Quarantine, ...] = ()
    changed_at: UnixMs = 0
    actor: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.batch is not None and not 1 <= self.batch <= MAX_BATCH:
            raise ConfigurationError(f"The batch limit is {self.batch}: it must be from 1 to {MAX_BATCH}.")
        if len(self.rates) > MAX_RATES:
            raise ConfigurationError(f"{len(self.rates)} tenants with a rate are too many (maximum {MAX_RATES}).")
        if len(self.quarantined) > MAX_QUARANTINED:
            raise ConfigurationError(
                f"{len(self.quarantined)} tenants and keys cannot be set aside at once (maximum {MAX_QUARANTINED}).",
                hint="Pause the queue instead: redrive queues pause.",
            )
        parsed_rates(self.rates)

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return self.paused is None and not self.quarantined and self.has_no_limits

    @property
    def has_no_limits(self) -> bool:
        """Whether turns are taken as the consumer says."""
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
    if control is None or control.has_no_limits:
        return fair
    batch = fair.batch if control.batch is None else control.batch
    if not control.rates:
        return replace(fair, batch=batch)
    own: Any = fair.rate
    return replace(fair, batch=batch, rate={**(own or {}), **parsed_rates(control.rates)})


def merged(control: Control, *, batch: int | None, rates: Mapping[str, str]) -> Control:
    """The control with these changes; what is not named stays."""
    return replace(control, batch=control.batch if batch is None else batch, rates={**control.rates, **rates})


def without_limits(control: Control) -> Control:
    """The control with the consumer's own limits; a pause and what is set aside stay."""
    return replace(control, batch=None, rates={})


def with_quarantined(control: Control, more: Iterable[Quarantine], *, now: UnixMs) -> Control:
    """With these set aside, too. One that is already is set aside as it is said now; one whose time is over goes."""
    kept = {(each.kind, each.name): each for each in control.quarantined if each.holds(now)}
    kept |= {(each.kind, each.name): each for each in more}
    return replace(control, quarantined=tuple(kept.values()))


def released(control: Control, names: Iterable[tuple[Kind, str]], *, now: UnixMs) -> Control:
    """Without these, and without those whose time is over."""
    gone = set(names)
    left = (each for each in control.quarantined if each.holds(now) and (each.kind, each.name) not in gone)
    return replace(control, quarantined=tuple(left))


class Asides:
    """Whose messages one control sets aside, for a look at every delivery.

    >>> asides = Asides(Control(queue="mail", quarantined=(Quarantine(kind=Kind.TENANT, name="acme", until=9),)))
    >>> asides.reason(Message(id="m", body=b"", tenant="acme"), now=5).code
    'QUARANTINED'
    >>> asides.reason(Message(id="m", body=b"", tenant="acme"), now=9) is None
    True
    """

    def __init__(self, control: Control | None) -> None:
        found = () if control is None else control.quarantined
        self._tenants = {each.name: each for each in found if each.kind is Kind.TENANT}
        self._keys = {each.name: each for each in found if each.kind is Kind.KEY}

    def reason(self, message: Message, *, now: UnixMs) -> Reason | None:
        """Why this message is set aside; None: it is not. One that a person sent back never is."""
        found = self._tenants.get(message.tenant or "") or self._keys.get(message.key or "")
        if found is None or not found.holds(now) or HEADER_LETTER in message.headers:
            return None
        by = f" by {found.actor}" if found.actor else ""
        why = f": {found.note}" if found.note else ""
        return Reason(code=QUARANTINED, text=f'The {found.kind} "{found.name}" is set aside{by}{why}. Not handled.')


Controls: TypeAlias = list[Control]


class ControlStore(Protocol):
    """Keeps controls where all workers see them. The rules of `redrive.core.ports` hold."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def put(self, control: Control) -> None:
        """The control of its queue from now on, whole; an empty one takes it away. Kept as `control_json` writes it,
        or so that everything in it comes back.
        """
        ...

    async def list(self) -> Controls:
        """All there are, by queue."""
        ...


def control_json(control: Control) -> str:
    """As JSON text."""
    added = {
        "paused": None if control.paused is None else _document(control.paused),
        "quarantined": [_document(each) for each in control.quarantined],
    }
    return json.dumps(
        {
            "schema": SCHEMA if any(added.values()) else 1,
            **{name: value for name, value in added.items() if value},
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
        paused = document.get("paused")
        return Control(
            queue=document["queue"],
            batch=document["batch"],
            rates=dict(document["rates"]),
            paused=None if paused is None else Pause(**_known(Pause, paused)),
            quarantined=tuple(
                Quarantine(**{**_known(Quarantine, each), "kind": Kind(each["kind"])})
                for each in document.get("quarantined", ())
            ),
            changed_at=document["changed_at"],
            actor=document["actor"],
            note=document["note"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"This is no control of a queue: {error!r:.120}.") from error


def _document(value: Pause | Quarantine) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _known(kind: type[Pause | Quarantine], document: Mapping[str, Any]) -> dict[str, Any]:
    """Only the fields this version has: a neighbouring newer one may have added some."""
    return {each.name: document[each.name] for each in fields(kind) if each.name in document}
