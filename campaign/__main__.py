"""`python -m campaign`: run the campaigns in full, or some of them, or scaled down. Exit code 1 if a promise broke."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from campaign import bomb, claims, deploys, hostile, kills
from campaign import redrives as embedded_redrives
from campaign.rabbit import crashes, operators, redrives, systems, worker_kills
from campaign.redis import everysec, rate, storm
from campaign.stage import CampaignError, Stage, stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What it is about, and its run at two scales: in full, and small enough for the tests (None: not among them)."""

    about: str
    run: Callable[[Stage, Any], None]
    full: object
    small: object


def _of(module: Any) -> Campaign:
    return Campaign(about=module.__doc__.splitlines()[0], run=module.run, full=module.FULL, small=module.SMALL)


def _of_each(module: Any) -> dict[str, Campaign]:
    about = module.__doc__.splitlines()[0]
    return {
        f"rabbit-{name}": Campaign(about=about, run=module.run, full=module.FULL[name], small=module.SMALL.get(name))
        for name in module.FULL
    }


CAMPAIGNS: Final[dict[str, Campaign]] = {
    "kills": _of(kills),
    "deploys": _of(deploys),
    "bomb": _of(bomb),
    "claims": _of(claims),
    "hostile": _of(hostile),
    "redrives": _of(embedded_redrives),
    "redis-storm": _of(storm),
    "redis-everysec": _of(everysec),
    "redis-rate": _of(rate),
    "rabbit-worker-kills": _of(worker_kills),
    **_of_each(systems),
    **_of_each(crashes),
    **_of_each(redrives),
    **_of_each(operators),
}


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
    campaign = CAMPAIGNS[name]
    scale = campaign.full if campaign.small is None or not small else campaign.small
    started = time.monotonic()
    print(f"\n== {name}: {campaign.about}\n   {scale}")
    try:
        play(campaign.run, scale, seed=seed, echo=True)
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
