"""BullMQ's scripts, from the installed package, and redrive's own around them.

What moves a job is BullMQ's Lua as it is: the text of a script becomes a function of (KEYS, ARGV), see `hoisting`, and
ours calls it for each job of a batch. So a batch is one round trip, and what is written is what Node writes. Ours
(`scripts/*.lua`) say in their heads what they take and return; those that call nothing of the package say why it has no
such script.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from redrive.brokers.bullmq.hoisting import as_function
from redrive.errors import ConfigurationError
from redrive.redis.scripts import Script

_OURS: Final = Path(__file__).with_name("scripts")
_USES: Final[dict[str, tuple[str, ...]]] = {
    "publish": ("addStandardJob", "addDelayedJob", "addPrioritizedJob"),
    "take": ("moveToActive",),
    "take_fair": ("moveToActive",),
    "settle": ("moveToFinished", "moveToDelayed", "retryJob", "moveJobFromActiveToWait"),
    "discard": ("removeJob",),
    "failed": (),
    "take_failed": ("removeJob",),
    "rescue": (),
    "beat": (),
    "depth": (),
    "peek": (),
    "standings": (),
}
"""Our script, and those of the package that it calls."""
_BEFORE: Final[dict[str, tuple[str, ...]]] = {
    "publish": ("common", "turns"),
    "take": ("common", "no_turns", "windows"),
    "take_fair": ("common", "turns", "windows"),
    "standings": ("common", "turns"),
}
"""Of our own, what stands before a script; `common` before all others. A function costs Redis something in each call of
a script that defines it, so none is there that cannot be needed.
"""
_LIMITS: Final = "limitsOf(turns, activeKey, fair, now)"
"""What `limits.lua` is for the script that hands out where turns are taken."""
_TURNS: Final = "turnTaking()"
"""What `turns.lua` is for the script that ends deliveries: few of them need it."""
_TURNS_END: Final = "\nreturn { open = openTurns, place = placing().placeJob, close = closeTurns }"
_MAKE_ROOM: Final = frozenset({"take", "take_fair", "settle", "rescue", "discard", "beat", "take_failed"})
"""What runs on a full server too: without it nobody could work off what fills it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripts:
    """All that the adapter runs."""

    publish: Script
    take: Script
    take_fair: Script
    """`take` of a queue whose turns are taken."""
    settle: Script
    discard: Script
    failed: Script
    take_failed: Script
    rescue: Script
    beat: Script
    depth: Script
    peek: Script
    standings: Script
    sweep: Script
    """BullMQ's own moveStalledJobsToWait."""
    extend: Script
    """BullMQ's own extendLocks."""
    package_version: str


@cache
def load() -> Scripts:
    """The scripts. Raises `ModuleNotFoundError` where the package is not installed, `ConfigurationError` where it is
    one whose scripts are not where they should be.
    """
    folder = _package_folder()
    return Scripts(
        **{name: Script(name, _joined(name, folder), runs_when_full=name in _MAKE_ROOM) for name in _USES},
        sweep=Script("moveStalledJobsToWait", _of_package(folder, "moveStalledJobsToWait")),
        extend=Script("extendLocks", _of_package(folder, "extendLocks")),
        package_version=metadata.version("bullmq"),
    )


def _package_folder() -> Path:
    # Looked for, not imported: of the package only its scripts are needed.
    found = importlib.util.find_spec("bullmq")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'bullmq'", name="bullmq")
    return Path(next(iter(found.submodule_search_locations))) / "commands"


def _joined(name: str, folder: Path) -> str:
    before = [_ours(each) for each in _BEFORE.get(name, ("common",))]
    functions = [as_function(used, _of_package(folder, used)) for used in _USES[name]]
    if name == "take_fair":
        functions.append(_function(_LIMITS, _ours("limits")))
    if name == "settle":
        functions.append(_function(_TURNS, _ours("turns") + _TURNS_END))
    return "\n".join((*before, *functions, _ours("take" if name == "take_fair" else name)))


def _function(head: str, body: str) -> str:
    # One that is not called costs nothing of what stands in it.
    return f"local function {head}\n{body}\nend\n"


def _ours(name: str) -> str:
    return _OURS.joinpath(f"{name}.lua").read_text("utf-8")


def _of_package(folder: Path, name: str) -> str:
    found = sorted(folder.glob(f"{name}-*.lua"))
    if len(found) != 1:
        raise ConfigurationError(
            f"The installed bullmq {metadata.version('bullmq')} has no script {name}. Nothing was consumed.",
            hint='Install the version redrive is tested with: pip install "redrive[redis]"',
        )
    return found[0].read_text("utf-8")
