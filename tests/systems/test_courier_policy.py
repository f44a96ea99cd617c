"""System A, policy: environment names, defaults, and the four delay intervals."""

from __future__ import annotations

import statistics

import pytest

from redrive.errors import ConfigurationError
from tests.systems.courier import DLQ_QUEUE, MAIN_QUEUE, SECRETS, courier

DAY_MS = 86_400_000


def test_the_defaults_are_those_of_the_system() -> None:
    with courier() as system:
        consumer = system.app.consumers[MAIN_QUEUE]

        assert 5 == consumer.max_attempts
        assert (DLQ_QUEUE, 90 * DAY_MS) == (consumer.dead_letter_queue, consumer.letter_ttl_ms)
        assert 30 * DAY_MS == consumer.idempotency_ttl_ms
        assert consumer.breaker is None
        assert "attempt" == consumer.attempt_field
        assert 300_000 == system.gateway._tolerance_ms
        assert 1_048_576 == system.gateway._max_body_bytes
        assert () == system.gateway.sources
        assert "sqlite:///courier.db" == system.app.settings.broker


@pytest.mark.parametrize(
    ("attempt", "low", "high"), [(1, 1_000, 1_200), (2, 2_000, 2_400), (3, 4_000, 4_800), (4, 8_000, 9_600)]
)
def test_the_four_delays_fill_their_intervals_evenly(attempt: int, low: int, high: int) -> None:
    with courier() as system:
        retry = system.app.consumers[MAIN_QUEUE].retry

        draws = [retry.delay_ms(attempt, step / 10_000) for step in range(10_000)]

        assert low == min(draws)
        assert high - 1 <= max(draws) <= high
        assert (low + high) / 2 == pytest.approx(statistics.mean(draws), rel=0.01)


def test_every_number_can_be_set_by_its_environment_name() -> None:
    with courier(
        RETRY_MAX_ATTEMPTS="3",
        RETRY_BACKOFF_BASE_MS="50",
        RETRY_BACKOFF_MULTIPLIER="3",
        RETRY_JITTER_PERCENT="0",
        DLQ_TTL_DAYS="7",
        WEBHOOK_TOLERANCE_SECONDS="60",
        COURIER_SECRETS=SECRETS,
        REDRIVE_BROKER="memory://",
    ) as system:
        consumer = system.app.consumers[MAIN_QUEUE]

        assert 3 == consumer.max_attempts
        assert [50, 150, 450] == [consumer.retry.delay_ms(attempt, 0.999) for attempt in (1, 2, 3)]
        assert 7 * DAY_MS == consumer.letter_ttl_ms
        assert 60_000 == system.gateway._tolerance_ms
        assert ("courier-x",) == system.gateway.sources
        assert "memory://" == system.app.settings.broker


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETRY_MAX_ATTEMPTS", "0"),
        ("RETRY_MAX_ATTEMPTS", "-1"),
        ("RETRY_MAX_ATTEMPTS", "2.5"),
        ("RETRY_MAX_ATTEMPTS", "many"),
        ("RETRY_BACKOFF_BASE_MS", "-1"),
        ("RETRY_BACKOFF_BASE_MS", "nan"),
        ("RETRY_BACKOFF_MULTIPLIER", "0.5"),
        ("RETRY_BACKOFF_MULTIPLIER", "inf"),
        ("RETRY_JITTER_PERCENT", "-20"),
        ("DLQ_TTL_DAYS", "0"),
        ("WEBHOOK_TOLERANCE_SECONDS", "-300"),
        ("COURIER_SECRETS", "{"),
        ("DOWNSTREAM_URL", "ftp://x"),
        ("DOWNSTREAM_TIMEOUT_MS", "0"),
    ],
)
def test_a_wrong_value_is_refused_by_the_variables_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught, courier(**{name: value}):
        pass

    assert name in str(caught.value)


def test_no_delay_is_ever_longer_than_ten_years() -> None:
    with courier() as system:
        retry = system.app.consumers[MAIN_QUEUE].retry

        assert 315_360_000_000 == retry.delay_ms(1_000_000, 0.5)
