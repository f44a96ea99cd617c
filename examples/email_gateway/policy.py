"""The policy of the system: its environment names and their defaults, letter by letter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from redrive import ConfigurationError, Exponential, Fair, Retry

from .names import DLQ_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every number of the system. Delay after attempt n: d = min(cap, base * 2^(n-1)), then d ± jitter * d; the cap
    comes first, so a capped delay lies between 45 and 75 s.
    """

    max_attempts: int
    base_delay_ms: float
    max_delay_ms: float
    jitter_factor: float
    dlq_ttl_ms: float
    dlq_name: str
    dlq_max_size: int
    default_ttl_ms: float
    enable_round_robin: bool
    max_jobs_per_tenant_batch: int
    round_robin_base_priority: int
    priority_increment_per_round: int
    max_round_robin_priority: int
    concurrency: int
    limiter_max: int
    limiter_duration_ms: float

    def retry(self) -> Retry:
        """The policy as a value for the consumer."""
        backoff = Exponential(
            self.base_delay_ms / 1_000,
            factor=2,
            cap=self.max_delay_ms / 1_000,
            jitter=f"±{self.jitter_factor * 100:.9f}%",
            cap_before_jitter=True,
        )
        return Retry(max_attempts=self.max_attempts, backoff=backoff)

    def fair(self) -> Fair | None:
        """Turns between tenants; None where they are switched off. What a broker does inside with priorities is its
        own; the numbers of the round robin are what the metrics report.
        """
        if not self.enable_round_robin:
            return None
        return Fair(
            batch=self.max_jobs_per_tenant_batch,
            base_priority=self.round_robin_base_priority,
            priority_increment=self.priority_increment_per_round,
            top_priority=self.max_round_robin_priority,
        )

    @property
    def rate(self) -> str:
        """The limiter: so many jobs in so long."""
        return f"{self.limiter_max} per {self.limiter_duration_ms:.0f} ms"

    @property
    def letter_ttl(self) -> timedelta:
        """How long a dead letter that is done with is kept."""
        return timedelta(milliseconds=self.dlq_ttl_ms)

    @property
    def lifetime(self) -> timedelta:
        """After so long a job that was not sent is dead as EXPIRED."""
        return timedelta(milliseconds=self.default_ttl_ms)


def policy_from(environment: Mapping[str, str]) -> Policy:
    """The policy an environment asks for. Raises `ConfigurationError` naming the variable that is wrong."""
    read = _Reader(environment)
    return Policy(
        max_attempts=read.count("MAX_ATTEMPTS", 5, least=1),
        base_delay_ms=read.number("BASE_DELAY_MS", 1_000),
        max_delay_ms=read.number("MAX_DELAY_MS", 60_000),
        jitter_factor=read.number("JITTER_FACTOR", 0.25),
        dlq_ttl_ms=read.number("DLQ_TTL_MS", 604_800_000, least=1),
        dlq_name=environment.get("DLQ_NAME", "").strip() or DLQ_NAME,
        dlq_max_size=read.count("DLQ_MAX_SIZE", 10_000, least=1),
        default_ttl_ms=read.number("DEFAULT_TTL", 86_400_000, least=1),
        enable_round_robin=read.truth("ENABLE_ROUND_ROBIN", default=True),
        max_jobs_per_tenant_batch=read.count("MAX_JOBS_PER_TENANT_BATCH", 3, least=1),
        round_robin_base_priority=read.count("ROUND_ROBIN_BASE_PRIORITY", 5, least=1),
        priority_increment_per_round=read.count("PRIORITY_INCREMENT_PER_ROUND", 1, least=0),
        max_round_robin_priority=read.count("MAX_ROUND_ROBIN_PRIORITY", 1, least=1),
        concurrency=read.count("WORKER_CONCURRENCY", 5, least=1),
        limiter_max=read.count("LIMITER_MAX", 100, least=1),
        limiter_duration_ms=read.number("LIMITER_DURATION_MS", 60_000, least=1),
    )


class _Reader:
    """Reads variables, each with its default, and names the one that is wrong."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def number(self, name: str, default: float, *, least: float = 0) -> float:
        text = self._environment.get(name, "").strip()
        try:
            value = float(text) if text else float(default)
        except ValueError:
            value = float("nan")
        if not least <= value < float("inf"):
            raise ConfigurationError(f"{name} is {text!r}: it must be a number, {least:g} or more.")
        return value

    def count(self, name: str, default: int, *, least: int) -> int:
        value = self.number(name, default, least=least)
        if value != int(value):
            raise ConfigurationError(f"{name} is {value!r}: it must be a whole number, {least} or more.")
        return int(value)

    def truth(self, name: str, *, default: bool) -> bool:
        text = self._environment.get(name, "").strip().lower()
        if text in {"", "1", "true", "yes", "on", "0", "false", "no", "off"}:
            return default if not text else text in {"1", "true", "yes", "on"}
        raise ConfigurationError(f"{name} is {text!r}: it must be true or false.")
