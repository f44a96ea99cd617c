"""`python -m bench.redis`: redrive beside its peers on Redis; tables for people, `--json` for machines."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench import machine
from bench.measure import ROOT
from bench.redis import CONTENDERS, part


def main() -> int:
    """Measure, then print."""
    given = _arguments()
    folder: Path = given.folder
    result: dict[str, Any] = {"machine": machine.line(folder)}
    result |= part.measure(
        folder,
        rounds=given.rounds,
        seconds=given.seconds / 10 if given.quick else given.seconds,
        quick=given.quick,
        tell=lambda text: print(f"… {text}", file=sys.stderr, flush=True),
        parts=given.only or part.PARTS,
        contenders=given.contenders,
    )
    result["load_after"] = machine.load()
    if given.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{result['machine']}, load at the end {result['load_after']:.1f}\n\n{part.text(result)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.redis", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=part.PARTS, help="measure only these parts")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of the comparison (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long one run takes (default 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything: to see that it works")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "bench-redis")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
