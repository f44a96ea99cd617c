"""Is everything in a definitions file on the broker as it says? `compare.py definitions.json < what-the-broker-has`.

Needs nothing but Python, so that it runs beside the broker. Exit code 1 and a line for each difference.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

KEYS: Final = {
    "exchanges": ("name",),
    "queues": ("name",),
    "bindings": ("source", "destination_type", "destination", "routing_key"),
}


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """One line for everything that is missing or otherwise; what the broker has beyond it is its own business."""
    lines = []
    for kind, keys in KEYS.items():
        there = {tuple(each[key] for key in keys): each for each in found.get(kind, [])}
        for each in wanted.get(kind, []):
            name = tuple(each[key] for key in keys)
            shown = f"{kind[:-1]} {' '.join(name)}"
            if name not in there:
                lines.append(f"{shown}: missing")
                continue
            for field in ("type", "durable", "arguments"):
                if field in each and each[field] != there[name].get(field):
                    lines.append(f"{shown}: {field} is {there[name].get(field)}, wanted {each[field]}")
    return lines


if __name__ == "__main__":
    told = differences(json.loads(Path(sys.argv[1]).read_text("utf-8")), json.load(sys.stdin))
    print("\n".join(told) or "the broker has it all")
    sys.exit(1 if told else 0)
