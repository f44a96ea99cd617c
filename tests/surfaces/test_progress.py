"""A bar for what takes longer than a second, and only where a person sees it."""

from __future__ import annotations

import io
import sys

import pytest

from redrive.cli import prompts
from redrive.cli.options import parse_rate
from redrive.cli.output import plural, span
from redrive.errors import ConfigurationError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, quiet_s: float) -> str:
    """What three steps of work show on this standard error."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(prompts, "QUIET_SECONDS", quiet_s)
    with prompts.Bar("redrive", total=3) as bar:
        for done in range(4):
            bar(done)
    return stream.getvalue()


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "" == work(monkeypatch, Terminal(), quiet_s=60.0)


def test_long_work_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = work(monkeypatch, Terminal(), quiet_s=0.0)

    assert "redrive" in shown
    assert "3/3" in shown


def test_a_file_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "" == work(monkeypatch, io.StringIO(), quiet_s=0.0)


@pytest.mark.parametrize(
    ("text", "per_second"), [("50", 50.0), ("50/s", 50.0), ("120/min", 2.0), ("3600/h", 1.0), ("0.5/s", 0.5)]
)
def test_a_rate_is_so_many_per_time(text: str, per_second: float) -> None:
    assert per_second == parse_rate(text)


@pytest.mark.parametrize("text", ["0", "-1", "fast", "5/week", ""])
def test_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--rate"):
        parse_rate(text)


def test_numbers_read_well() -> None:
    assert ["1 letter", "1 234 letters"] == [plural(1, "letter"), plural(1_234, "letter")]
    assert ["999ms", "59s", "59m", "47h", "2d"] == [
        span(ms) for ms in (999, 59_999, 3_599_999, 172_799_999, 172_800_000)
    ]
