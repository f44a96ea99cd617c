"""`python -m campaign`: run the campaigns in full, or some of them, or scaled down. Exit code 1 if a promise broke."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from campaign import bomb, claims, deploys, hostile, kills
from campaign.stage import CampaignError, Stage, stage

CAMPAIGNS: Final[dict[str, Any]] = {
    "kills": kills,
    "deploys": deploys,
    "bomb": bomb,
    "claims": claims,
    "hostile": hostile,
}
"""Each module has `run(stage, scale)` and two scales, `FULL` and `SMALL`."""


def main() -> int:
    """Run what was asked for; the transcript goes to the terminal as it happens."""
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CAMPAIGNS, []], help="which campaigns (default: all)")
    parser.add_argument("--seed", type=int, help="repeat a plan of kills (default: a new one, printed)")
    parser.add_argument("--small", action="store_true", help="the scaled-down numbers that the tests use")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    broke = [name for name in given.names or CAMPAIGNS if not _holds(name, seed, small=given.small)]
    print(f"seed {seed}: " + (f"BROKEN: {', '.join(broke)}" if broke else "every promise held"))
    return 1 if broke else 0


def _holds(name: str, seed: int, *, small: bool) -> bool:
    module = CAMPAIGNS[name]
    scale = module.SMALL if small else module.FULL
    started = time.monotonic()
    print(f"\n== {name}: {module.__doc__.splitlines()[0]}\n   {scale}")
    try:
        play(module.run, scale, seed=seed, echo=True)
    except CampaignError as error:
        print(error)
        return False
    print(f"== {name}: held, {time.monotonic() - started:.0f} s")
    return True


def play(run: Callable[[Stage, Any], None], scale: object, *, seed: int, echo: bool = False) -> None:
    """Run one campaign in a folder of its own. Raises `CampaignError` where a promise did not hold."""
    with (
        tempfile.TemporaryDirectory(prefix="redrive-campaign-") as place,
        stage(Path(place) / "run", seed, echo=echo) as made,
    ):
        run(made, scale)


if __name__ == "__main__":
    sys.exit(main())
