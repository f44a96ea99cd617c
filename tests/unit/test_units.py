"""Durations, instants and delays on the wire (case BO-03, BO-05)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.units import MAX_DELAY_MS, duration_ms, parse_instant, rfc3339, round_half_up, wire_delay
from redrive.errors import ConfigurationError


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1500ms", 1_500), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000), (" 1.5 s ", 1_500),
        (30, 30_000), (0.25, 250), (0, 0), (timedelta(minutes=2), 120_000), (timedelta(microseconds=500), 1),
        ("0.4ms", 0), ("315360000s", MAX_DELAY_MS),
    ],
)  # fmt: skip
def test_a_duration_is_whole_milliseconds_whatever_it_was_written_as(written: object, expected: int) -> None:
    assert expected == duration_ms(written)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written",
    [-1, "-1s", True, None, "soon", "", "1 fortnight", float("nan"), float("inf"), 10**400, "315360001s", [], "1e3s",
     timedelta(seconds=-1), "٣s"],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_the_field_named(written: object) -> None:
    with pytest.raises(ConfigurationError, match="lease"):
        duration_ms(written, field="lease")  # type: ignore[arg-type]


@given(st.floats(0, 1e12))
def test_rounding_is_to_the_nearest_and_a_half_goes_up(value: float) -> None:
    rounded = round_half_up(value)

    assert abs(rounded - value) <= 0.5
    assert rounded - value != -0.5


@pytest.mark.parametrize(
    ("delay_ms", "expected"),
    [(1_500.7, "1501"), (0.4, "1"), (0, "0"), (1e9, "1000000000"), (2_500.0, "2500"), (1e300, str(MAX_DELAY_MS))],
)
def test_a_delay_on_the_wire_is_whole_milliseconds_as_plain_digits(delay_ms: float, expected: str) -> None:
    assert expected == wire_delay(delay_ms)


@given(st.floats(0, MAX_DELAY_MS))
def test_a_delay_on_the_wire_is_never_early(delay_ms: float) -> None:
    text = wire_delay(delay_ms)

    assert text.isdigit()
    assert 0 <= int(text) - delay_ms <= 1


@pytest.mark.parametrize("delay_ms", [-0.1, float("nan"), float("inf")])
def test_a_delay_that_is_none_never_reaches_the_wire(delay_ms: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        wire_delay(delay_ms)


@pytest.fixture(params=["Europe/Berlin", "Asia/Shanghai", "America/Phoenix"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-10-26T00:59:30Z", 1_761_440_370_000),
        ("2025-03-30T00:59:30Z", 1_743_296_370_000),
        ("2025-10-26T02:30:00+02:00", 1_761_438_600_000),
        ("2025-10-26T02:30:00+01:00", 1_761_442_200_000),
    ],
)
def test_an_instant_is_the_same_in_every_zone_of_the_host(zone: str, text: str, expected: int) -> None:
    assert expected == parse_instant(text), zone
    assert expected == parse_instant(rfc3339(expected)), zone


@given(st.integers(0, 253_402_300_799_999))
def test_an_instant_survives_its_text(at: int) -> None:
    assert at == parse_instant(rfc3339(at))


@pytest.mark.parametrize("text", ["2025-10-26T02:30:00", "2025-10-26", "yesterday", "", "2025-13-01T00:00:00Z"])
def test_an_instant_without_an_offset_is_refused_with_the_field_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--since"):
        parse_instant(text, field="--since")


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_an_instant_that_has_no_text_in_utc_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no time"):
        parse_instant(text)
