"""The work every contender does: publish N JSON messages of 400 bytes, then consume them, parsing each."""

from __future__ import annotations

import json
from typing import Any, Final

BODY_BYTES: Final = 400


def order(number: int) -> dict[str, Any]:
    """Message `number` as a Python value; its JSON text is exactly `BODY_BYTES` long."""
    value: dict[str, Any] = {
        "order_id": f"ord_{number:012d}",
        "customer": {"id": number * 7919 % 100_003, "name": "Ada Lovelace", "country": "GB"},
        "lines": [{"sku": "A-1001", "count": 2, "cents": 1999}, {"sku": "B-2002", "count": 1, "cents": 4950}],
        "note": "",
    }
    value["note"] = "x" * (BODY_BYTES - len(text(value)))
    return value


def text(value: dict[str, Any]) -> str:
    """The JSON text of a message."""
    return json.dumps(value, separators=(",", ":"))


def texts(count: int) -> list[str]:
    """The JSON texts of `count` messages, made before any clock starts."""
    return [text(order(number)) for number in range(count)]


class Tally:
    """Counts what was handled, by id, so that a lost or repeated message cannot pass as speed."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self.repeats = 0

    def add(self, value: dict[str, Any]) -> int:
        """Count one handled message; returns how many different ones there are now."""
        if value["order_id"] in self._seen:
            self.repeats += 1
        self._seen.add(value["order_id"])
        return len(self._seen)

    def check(self, count: int) -> None:
        """Raises RuntimeError unless exactly `count` messages were handled, each once."""
        if len(self._seen) != count or self.repeats:
            raise RuntimeError(f"handled {len(self._seen)} of {count} messages, {self.repeats} more than once")
