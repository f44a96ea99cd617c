"""The policy of the system: its environment names and their defaults, letter by letter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redrive import ConfigurationError, Exponential, Retry
from redrive.ingest import SecretsFile, secrets_from

MAIN_QUEUE = "courier-events-main"
DLQ_QUEUE = "courier-events-dlq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every number of the system. Delay after attempt n: base * multiplier^(n-1), plus 0 to jitter percent of it."""

    max_attempts: int
    backoff_base_ms: float
    backoff_multiplier: float
    jitter_percent: float
    dlq_ttl_days: float
    webhook_tolerance_seconds: float

    def retry(self) -> Retry:
        """The policy as a value for the consumer. No cap, as the system has none."""
        backoff = Exponential(
            self.backoff_base_ms / 1_000,
            factor=self.backoff_multiplier,
            jitter=f"0..{self.jitter_percent:.9f}%",
        )
        return Retry(max_attempts=self.max_attempts, backoff=backoff)


def policy_from(environment: Mapping[str, str]) -> Policy:
    """The policy an environment asks for. Raises `ConfigurationError` naming the variable that is wrong."""
    return Policy(
        max_attempts=int(_number(environment, "RETRY_MAX_ATTEMPTS", 5, least=1, whole=True)),
        backoff_base_ms=_number(environment, "RETRY_BACKOFF_BASE_MS", 1_000, least=0),
        backoff_multiplier=_number(environment, "RETRY_BACKOFF_MULTIPLIER", 2, least=1),
        jitter_percent=_number(environment, "RETRY_JITTER_PERCENT", 20, least=0),
        dlq_ttl_days=_number(environment, "DLQ_TTL_DAYS", 90, least=0.001),
        webhook_tolerance_seconds=_number(environment, "WEBHOOK_TOLERANCE_SECONDS", 300, least=0),
    )


def sources_from(environment: Mapping[str, str]) -> SecretsFile | dict[str, tuple[str, ...]]:
    """Who may send: `COURIER_SECRETS` (JSON, source to list of secrets), or the file `COURIER_SECRETS_FILE` names,
    which is read again whenever it changes. Without either every source is unknown and answered with 404.
    """
    file = environment.get("COURIER_SECRETS_FILE", "")
    return SecretsFile(file) if file.strip() else secrets_from(environment, name="COURIER_SECRETS")


def _number(environment: Mapping[str, str], name: str, default: float, *, least: float, whole: bool = False) -> float:
    text = environment.get(name, "").strip()
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf") or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise ConfigurationError(f"{name} is {text!r}: it must be {kind}, {least:g} or more.")
    return value
