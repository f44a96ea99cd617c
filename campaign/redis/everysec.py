"""Campaign: what `appendfsync everysec` costs: Redis killed under load, and its machine crashed under load.

A kill of the process takes nothing that the kernel has. A crash of the machine takes what was not on disk: here the
killed server's append-only file is cut back to what it held a second before, mostly in the middle of a command, and
read again. Nothing older than that second is lost. What was settled in it runs again, and its effect is refused under
its key. A producer that sends again what it sent in that time completes the effects, each once.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from campaign.journal import CONFIRMED, EFFECT, START, Line
from campaign.kills import open_letters
from campaign.redis.app import QUEUE
from campaign.redis.recovery import Excuses
from campaign.redis.send import AGAIN
from campaign.redis.storm import Ground, Plan, chosen
from campaign.stage import Stage
from campaign.watching import Watch
from redrive.testing.servers.proxy import FaultProxy
from redrive.testing.servers.redis import RedisNode

UNWRITTEN_S: Final = 1.0
"""How far behind the disk is at a crash: Redis syncs once a second."""
POSTPONED_S: Final = 2.0
"""While a sync is slow Redis puts the write itself off, for so long at most (redis.conf, no-appendfsync-on-rewrite)."""
START_S: Final = 3.0
"""About what the sender needs to start, and the restarts, for its pace."""
SAMPLE_S: Final = 0.01
SAMPLES: Final = 2_000
PARTS: Final = {"LLEN": ("wait", "active", "paused"), "ZCARD": ("delayed", "prioritized")}
SETTINGS: Final = {"appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}


Kind: TypeAlias = Literal["kill", "crash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of what."""

    messages: int
    kills: int
    crashes: int
    gap_s: tuple[float, float]
    patience_s: float = 300


FULL: Final = Scale(messages=20_000, kills=5, crashes=5, gap_s=(4.0, 8.0))
SMALL: Final = Scale(messages=1_500, kills=1, crashes=1, gap_s=(1.5, 2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The server went at `at`, and came back with what it had been told until `kept_until`."""

    kind: Kind
    at: float
    kept_until: float


class Disk(Watch):
    """Notes how large the append-only file was when; cuts it back to that."""

    every_s = SAMPLE_S

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._samples: deque[tuple[float, Path, int]] = deque(maxlen=SAMPLES)

    def cut_back(self, until: float) -> float:
        """Forget what was written after that instant; returns the one it is as of."""
        at, file, size = max((each for each in list(self._samples) if each[0] <= until), key=lambda each: each[0])
        os.truncate(file, size)
        return at

    def look(self) -> None:
        """Note the sizes."""
        at = time.monotonic()
        for file in self._folder.glob("appendonlydir/*.incr.aof"):
            self._samples.append((at, file, file.stat().st_size))


def run(stage: Stage, scale: Scale) -> None:
    """Raises `CampaignError` where more was lost than the unwritten second, or an effect came twice or not at all."""
    seconds = (scale.kills + scale.crashes) * sum(scale.gap_s) / 2 + START_S
    plan = Plan(messages=scale.messages, seconds=seconds)
    with (
        RedisNode(chosen(), settings=SETTINGS) as node,
        FaultProxy(node.host, node.port) as proxy,
        Excuses() as excuses,
        Disk(node.folder) as disk,
    ):
        stage.say(f"{node.install}, appendfsync everysec")
        ground = Ground(stage=stage, plan=plan, patience_s=scale.patience_s, node=node, proxy=proxy, excuses=excuses)
        ground.start()
        faults = _faults(ground, scale, disk)
        ground.until("all is sent", lambda: len(ground.confirmed) == scale.messages)
        ground.until("nothing waits", lambda: _is_idle(node))
        _check_losses(ground, faults)
        _send_again(ground, faults)
        ground.until("nothing waits again", lambda: _is_idle(node))
        _check_effects(ground)


def _faults(ground: Ground, scale: Scale, disk: Disk) -> list[Fault]:
    stage = ground.stage
    kinds: list[Kind] = ["kill"] * scale.kills
    kinds += ["crash"] * scale.crashes
    stage.rng.shuffle(kinds)
    faults: list[Fault] = []
    for kind in kinds:
        stage.pause(*scale.gap_s)
        ground.node.kill()
        at = time.monotonic()
        kept_until = at if kind == "kill" else disk.cut_back(at - UNWRITTEN_S)
        ground.node.start()
        faults.append(Fault(kind=kind, at=at, kept_until=kept_until))
        stage.say(f"{kind}: Redis is back as of {at - kept_until:.2f} s before it")
        ground.revive()
    return faults


def _is_idle(node: RedisNode) -> bool:
    return not any(node.ask(command, f"bull:{QUEUE}:{part}") for command, parts in PARTS.items() for part in parts)


def _check_losses(ground: Ground, faults: Sequence[Fault]) -> None:
    stage = ground.stage
    confirmed = {key: lines[-1].at for key, lines in stage.journal.of(CONFIRMED, QUEUE).items()}
    lost = [confirmed[key] for key in ground.confirmed - ground.effects()]
    done = stage.journal.of(EFFECT, QUEUE)
    starts = stage.journal.of(START, QUEUE)
    for fault in faults:
        before = [at for at in lost if _hit(at, faults) is fault]
        again = [at for key, lines in starts.items() if (at := _run_again(done.get(key, []), lines, fault)) is not None]
        stage.say(
            f"{fault.kind}: lost {_told(before, fault)} of what was confirmed; ran again {_told(again, fault)} of what "
            "was done"
        )
    late = [at for at in lost if (hit := _hit(at, faults)) is None or at < hit.kept_until - POSTPONED_S]
    stage.same("lost though it was older than what the disk may lack", [], late)


def _told(instants: Sequence[float], fault: Fault) -> str:
    return f"{len(instants)} (the oldest {fault.at - min(instants):.2f} s old)" if instants else "none"


def _hit(at: float, faults: Sequence[Fault]) -> Fault | None:
    """The next fault after this instant: what was lost was lost by that."""
    return next((fault for fault in faults if fault.at >= at), None)


def _run_again(done: Sequence[Line], starts: Sequence[Line], fault: Fault) -> float | None:
    """When it was done, where it was done shortly before this fault, and started again after it."""
    before = [line.at for line in done if fault.kept_until - POSTPONED_S <= line.at <= fault.at]
    is_again = any(line.at > fault.at for line in starts)
    return max(before) if before and is_again else None


def _send_again(ground: Ground, faults: Sequence[Fault]) -> None:
    """As a producer does that keeps what it sent for some seconds: it cannot know which of it was lost."""
    stage = ground.stage
    sent = [
        key
        for key, lines in stage.journal.of(CONFIRMED, QUEUE).items()
        if any(fault.kept_until - POSTPONED_S <= lines[-1].at <= fault.at for fault in faults)
    ]
    (stage.folder / AGAIN).write_text("\n".join(sent), "utf-8")
    sender = stage.python("sender", "campaign.redis.send", str(ground.plan.messages), "0", "--again")
    ground.until(f"{len(sent)} are sent again", lambda: not sender.is_alive)
    stage.same("exit code of the sender", 0, sender.popen.returncode)


def _check_effects(ground: Ground) -> None:
    stage = ground.stage
    ends = stage.journal.of(EFFECT, QUEUE)
    refused = sum(len(lines) - 1 for lines in ends.values())
    stage.say(f"{len(ground.confirmed)} messages, {len(ground.effects())} effects, {refused} more refused as repeats")
    stage.same("messages without an effect", set(), ground.confirmed - ground.effects())
    stage.same("effects of messages nobody sent", set(), ground.effects() - ground.confirmed)
    stage.same("dead letters", 0, stage.ask(open_letters))
