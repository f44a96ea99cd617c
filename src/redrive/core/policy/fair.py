"""Fair: how the messages of one queue are shared out between tenants, as a checked value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from redrive.core.policy.fairness import (
    BASE_PRIORITY,
    MAX_WEIGHT,
    MIN_WEIGHT,
    PRIORITY_PER_ROUND,
    TOP_PRIORITY,
    group_of,
    priority,
    step_of,
)
from redrive.core.policy.flow import Rate, RateSpec, parse_rate
from redrive.errors import ConfigurationError

By: TypeAlias = Literal["tenant"]
Cost: TypeAlias = Literal["measured"]

DEFAULT_BATCH: Final = 3
"""Source: system E, `MAX_JOBS_PER_TENANT_BATCH`."""

MAX_BATCH: Final = 10_000
MAX_PRIORITY: Final = 1_000_000
MAX_FIELD_CHARS: Final = 256
EVERYBODY: Final = "*"
"""In a mapping of rates or concurrencies: every tenant that is not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fair:
    """Take turns between tenants instead of first come, first served.

    `batch`: most starts of one tenant in a row while another one waits. `weights`: a tenant of weight 2 gets twice the
    share of one of weight 1, which is what everybody has who is not named; more than `batch` times the share of the
    others nobody gets. `cost`: None counts starts; "measured" counts handler time, so that a tenant with slow messages
    gets fewer of them. `rate` and `concurrency`: limits of each tenant, or a mapping of tenants to their own ("*": all
    others); what is over a limit waits in the queue and holds up nobody else. `tenant_field`: of jobs that other
    producers made, the field of the JSON body that names the tenant (Redis only).

    `base_priority`, `priority_increment`, `top_priority`: what is reported of a tenant, and nothing else: the base for
    who is served in turn, so much more urgent (less) with each round without service, at most the top.

    Raises `ConfigurationError` naming the field.

    >>> Fair(weights={"acme": 2}, rate={"trial": "1 per 10 s"}).batch
    3
    """

    by: By = "tenant"
    batch: int = DEFAULT_BATCH
    weights: Mapping[str, float] = field(default_factory=dict)
    cost: Cost | None = None
    rate: RateSpec | Mapping[str, RateSpec] | None = None
    concurrency: int | Mapping[str, int] | None = None
    base_priority: int = BASE_PRIORITY
    priority_increment: int = PRIORITY_PER_ROUND
    top_priority: int = TOP_PRIORITY
    tenant_field: str | None = None

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise ConfigurationError(f"fair.by is {self.by!r}.", hint='Turns are taken by "tenant".')
        if not _is_whole(self.batch, 1, MAX_BATCH):
            raise ConfigurationError(f"fair.batch is {self.batch!r}: it must be a whole number from 1 to {MAX_BATCH}.")
        if self.cost is not None and self.cost not in get_args(Cost):
            raise ConfigurationError(f"fair.cost is {self.cost!r}.", hint='Write cost="measured", or leave it out.')
        for name, least in (("base_priority", 1), ("priority_increment", 0), ("top_priority", 1)):
            if not _is_whole(getattr(self, name), least, MAX_PRIORITY):
                raise ConfigurationError(
                    f"fair.{name} is {getattr(self, name)!r}: it must be a whole number from {least} to {MAX_PRIORITY}."
                )
        if self.tenant_field is not None and not _is_name(self.tenant_field):
            raise ConfigurationError(
                f"fair.tenant_field is {self.tenant_field!r:.120}.", hint='Write the name of a field, as "companyId".'
            )
        object.__setattr__(self, "weights", _weights(self.weights))
        object.__setattr__(self, "rate", _rates(self.rate))
        object.__setattr__(self, "concurrency", _concurrencies(self.concurrency))

    def step_for(self, group: str) -> int:
        """How far a start of this group moves it in virtual time."""
        return step_of(self.weights.get(group, 1.0))

    def priority_after(self, rounds: int) -> int:
        """What is reported of a tenant after so many rounds without service; 1 is the most urgent."""
        return priority(rounds, base=self.base_priority, increment=self.priority_increment, top=self.top_priority)

    @property
    def has_rates(self) -> bool:
        """Whether any tenant has a rate."""
        return bool(self.rate)

    @property
    def has_concurrency(self) -> bool:
        """Whether any tenant has a limit of messages in hand."""
        return bool(self.concurrency)

    def rate_of(self, group: str) -> Rate | None:
        """The rate of this group; None without limit."""
        rates: Any = self.rate
        return rates.get(group, rates.get(EVERYBODY)) if rates else None

    def concurrency_of(self, group: str) -> int | None:
        """How many messages of this group may be in hand at once; None without limit."""
        limits: Any = self.concurrency
        return limits.get(group, limits.get(EVERYBODY)) if limits else None


def make_fair(given: Fair | str | None, where: str) -> Fair | None:
    """What a user wrote for `fair_by`. Raises `ConfigurationError` that begins with `where`."""
    if given is None or isinstance(given, Fair):
        return given
    if given in get_args(By):
        return Fair(by="tenant")
    raise ConfigurationError(
        f"{where}: fair_by is {given!r}.", hint='Write fair_by="tenant", or fair_by=Fair(weights={…}).'
    )


# ------------------------------------------------------------------------------------------------ checks


def _weights(given: Mapping[str, Any]) -> Mapping[str, float]:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"fair.weights is {given!r}.", hint='Write weights={"acme": 2}.')
    found: dict[str, float] = {}
    for tenant, weight in given.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            raise ConfigurationError(
                f'fair.weights["{tenant}"] is {weight!r}: it must be a number from {MIN_WEIGHT} to {MAX_WEIGHT:g}.'
            )
        found[_named(tenant, "weights", found)] = float(weight)
    return found


def _rates(given: RateSpec | Mapping[str, RateSpec] | None) -> Mapping[str, Rate] | None:
    if given is None:
        return None
    each = given if isinstance(given, Mapping) else {EVERYBODY: given}
    found: dict[str, Rate] = {}
    for tenant, rate in each.items():
        field_name = f'fair.rate["{tenant}"]' if isinstance(given, Mapping) else "fair.rate"
        found[_named(tenant, "rate", found)] = parse_rate(rate, field=field_name)
    return found


def _concurrencies(given: int | Mapping[str, int] | None) -> Mapping[str, int] | None:
    if given is None:
        return None
    each = given if isinstance(given, Mapping) else {EVERYBODY: given}
    found: dict[str, int] = {}
    for tenant, limit in each.items():
        if not _is_whole(limit, 1, MAX_BATCH):
            of = f'["{tenant}"]' if isinstance(given, Mapping) else ""
            raise ConfigurationError(
                f"fair.concurrency{of} is {limit!r}: it must be a whole number from 1 to {MAX_BATCH}."
            )
        found[_named(tenant, "concurrency", found)] = limit
    return found


def _named(tenant: str, name: str, known: Mapping[str, object]) -> str:
    """The group a user means. Two names of one group would be one rule too many."""
    group = group_of(tenant)
    if group in known:
        raise ConfigurationError(f'fair.{name} names the tenant "{group}" twice.')
    return group


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_FIELD_CHARS and value.isprintable()


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
