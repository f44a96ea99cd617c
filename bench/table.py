"""Prints results as tables, plain enough to paste into the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table: first column left, the others right, padded so that it also reads in a terminal."""
    widths = [max(len(row[column]) for row in (head, *body)) for column in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_row(row, widths) for row in (head, rule, *body))


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "| " + " | ".join([first, *others]) + " |"


def throughput(rows: Sequence[dict[str, Any]]) -> str:
    """The comparison, fastest first."""
    head = (
        "contender",
        "synchronous",
        "publish/s",
        "consume/s",
        "both/s",
        "low-high",
        "CPU ms/msg",
        "RSS MB",
        "redrive is",
    )
    return markdown(head, [_throughput_row(row) for row in rows])


def _throughput_row(row: dict[str, Any]) -> tuple[str, ...]:
    ratio = f"{row['redrive_ratio']:.2f}x" if "redrive_ratio" in row else "-"
    return (
        row["title"],
        row["synchronous"],
        f"{row['publish_per_s']:,.0f}",
        f"{row['consume_per_s']:,.0f}",
        f"{row['both_per_s']:,.0f}",
        f"{row['both_low']:,.0f}-{row['both_high']:,.0f}",
        f"{row['cpu_ms']:.3f}",
        f"{row['rss_mb']:.0f}",
        ratio,
    )


def figures(rows: Sequence[tuple[str, str, str]]) -> str:
    """Single numbers: what was measured, what came out, what is promised."""
    return markdown(("measured", "result", "promise"), rows)
