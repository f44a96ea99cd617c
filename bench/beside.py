"""A server's contenders beside redrive: rows of numbers, what is promised of their ratios, and both as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bench import table
from bench.apart import Run
from bench.compare import Rounds, Spread
from bench.measure import Contender

Number = Callable[[Run], float]


def publish_per_s(run: Run) -> float:
    """Messages a second while publishing."""
    return run.publish_per_s


def consume_per_s(run: Run) -> float:
    """Messages a second while consuming."""
    return run.consume_per_s


NUMBERS: Final[Mapping[str, Number]] = {"publish": publish_per_s, "consume": consume_per_s}


def rows(rounds: Rounds[Run], own: Contender) -> list[dict[str, Any]]:
    """One row a contender, the fastest consumer first. `own`: whose ratios to each are told."""
    found = [_row(rounds, contender, own) for contender in rounds.contenders]
    return sorted(found, key=lambda row: -row["consume_per_s"])


def _row(rounds: Rounds[Run], contender: Contender, own: Contender) -> dict[str, Any]:
    name = contender.name
    consumed = rounds.of(name, consume_per_s)
    row: dict[str, Any] = {
        "name": name,
        "title": contender.title,
        "messages": rounds.runs[name][0].messages,
        "publish_per_s": rounds.of(name, publish_per_s).median,
        "publish_cpu_us": rounds.of(name, lambda each: each.publish_cpu_us).median,
        "consume_per_s": consumed.median,
        "consume_low": consumed.low,
        "consume_high": consumed.high,
        "consume_cpu_us": rounds.of(name, lambda each: each.consume_cpu_us).median,
        "broker_cpu_us": rounds.of(name, lambda each: each.broker_cpu_us).median,
        "rss_mb": rounds.of(name, lambda each: each.rss_mb).median,
    }
    if own.name in rounds.runs:
        for what, number in NUMBERS.items():
            row |= _ratios(what, rounds.ratio(own.name, name, number))
    return row


def _ratios(what: str, ratio: Spread) -> dict[str, float]:
    return {f"{what}_ratio": ratio.median, f"{what}_ratio_low": ratio.low, f"{what}_ratio_high": ratio.high}


def claims(
    rounds: Rounds[Run], own: Contender, promised: Sequence[tuple[str, str, Number, float]]
) -> list[tuple[str, str, str]]:
    """What is promised of the ratios (title, to whom, of which number, at least), what came out, and how it varied."""
    if own.name not in rounds.runs:
        return []
    found = []
    for title, name, number, goal in promised:
        if name in rounds.runs:
            ratio = rounds.ratio(own.name, name, number)
            found.append((title, f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})", f"at least {goal:g}x"))
    return found


def text(rows: Sequence[dict[str, Any]], *, where: str) -> str:
    """The comparison as a table. `where`: what stands over the names."""
    head = (
        where, "publish/s", "CPU µs", "consume/s", "low-high", "CPU µs", "broker µs", "RSS MB",
        "redrive publishes", "redrive consumes",
    )  # fmt: skip
    return table.markdown(head, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["title"],
        f"{row['publish_per_s']:,.0f}",
        f"{row['publish_cpu_us']:.0f}",
        f"{row['consume_per_s']:,.0f}",
        f"{row['consume_low']:,.0f}-{row['consume_high']:,.0f}",
        f"{row['consume_cpu_us']:.0f}",
        f"{row['broker_cpu_us']:.0f}",
        f"{row['rss_mb']:.0f}",
        _ratio(row, "publish"),
        _ratio(row, "consume"),
    )


def _ratio(row: dict[str, Any], what: str) -> str:
    if f"{what}_ratio" not in row:
        return "-"
    low, high = row[f"{what}_ratio_low"], row[f"{what}_ratio_high"]
    return f"{row[f'{what}_ratio']:.2f}x ({low:.2f}-{high:.2f})"
