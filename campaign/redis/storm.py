"""Campaign: jobs on Redis; workers killed 20 times, Redis killed and restarted 3 times, connections cut.

Nothing that was accepted is lost, nothing is stuck, and each effect happened once: it is written under the idempotency
key. Redis writes its append-only file before it answers (`appendfsync always`); what `everysec` may cost is measured
by `CAMPAIGN_APPENDFSYNC=everysec`, and then only told.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from campaign.journal import CONFIRMED, EFFECT, START
from campaign.kills import open_letters
from campaign.redis.app import QUEUE, effects_file
from campaign.stage import Process, Stage
from redrive.testing.servers.proxy import FaultProxy
from redrive.testing.servers.redis import RedisNode
from redrive.testing.servers.redis_install import RedisInstall, installed_redis

APP: Final = "campaign.redis.app:app"
WORKERS: Final = 3
RESTART_S: Final = 3.0
"""About what a restart costs, for the pace of the sender."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of what. `stuck_s`: how long after the last fault the last message may be processed."""

    messages: int
    worker_kills: int
    restarts: int
    cuts: int
    stuck_s: float
    gap_s: tuple[float, float] = (0.5, 2.0)
    patience_s: float = 300


FULL: Final = Scale(messages=20_000, worker_kills=20, restarts=3, cuts=20, stuck_s=15, gap_s=(1.5, 5.0))
SMALL: Final = Scale(messages=600, worker_kills=2, restarts=1, cuts=2, stuck_s=60, gap_s=(0.2, 0.6))


@dataclass(slots=True)
class Ground:
    """One campaign's server, proxy and processes."""

    stage: Stage
    scale: Scale
    node: RedisNode
    proxy: FaultProxy
    workers: list[Process]
    sender: Process | None = None

    def start_worker(self, number: int) -> None:
        """Start the worker of this number (again)."""
        process = self.stage.redrive(f"worker-{number}", "work", APP)
        self.workers[number:] = [process, *self.workers[number + 1 :]]

    def start_sender(self) -> None:
        """Start the sender (again)."""
        scale = self.scale
        events = scale.worker_kills + scale.restarts + scale.cuts
        seconds = events * sum(scale.gap_s) / 2 + scale.restarts * RESTART_S
        self.sender = self.stage.python("sender", "campaign.redis.send", str(scale.messages), f"{seconds:.1f}")

    def revive(self) -> None:
        """As a service manager does: what ended for want of a server is started again."""
        for number, worker in enumerate(self.workers):
            if not worker.is_alive:
                self.start_worker(number)
        if self.sender is not None and not self.sender.is_alive and self.sender.popen.returncode:
            self.start_sender()

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """As `Stage.until`, reviving what ended."""

        def holds_now() -> bool:
            self.revive()
            return holds()

        self.stage.until(what, holds_now, seconds=self.scale.patience_s)

    @property
    def confirmed(self) -> set[str]:
        """What the sender was told is durable."""
        return set(self.stage.journal.of(CONFIRMED, QUEUE))

    def effects(self) -> set[str]:
        """Keys of the effects that happened."""
        with closing(sqlite3.connect(effects_file(self.stage.folder), timeout=30)) as connection:
            try:
                return {key for (key,) in connection.execute("select key from effects")}
            except sqlite3.OperationalError:
                return set()


def run(stage: Stage, scale: Scale) -> None:
    """Raises `CampaignError` where something was lost, stuck or repeated that may not be."""
    fsync = os.environ.get("CAMPAIGN_APPENDFSYNC", "always")
    settings = {"appendfsync": fsync}
    with RedisNode(chosen(), settings=settings) as node, FaultProxy(node.host, node.port) as proxy:
        stage.say(f"{node.install}, appendfsync {fsync}")
        stage.environment |= {
            "REDRIVE_BROKER": node.url_by(node.host, proxy.port),
            "REDRIVE_STORE": f"sqlite:///{stage.file}",
        }
        ground = Ground(stage=stage, scale=scale, node=node, proxy=proxy, workers=[])
        for number in range(WORKERS):
            ground.start_worker(number)
        ground.start_sender()
        ground.until("the first effects have happened", lambda: len(ground.effects()) > 0)
        _storm(ground)
        quiet_at = time.monotonic()
        ground.until("all is sent", lambda: len(ground.confirmed) == scale.messages)
        sent_at = time.monotonic()
        if fsync == "always":
            ground.until("every effect has happened", lambda: not ground.confirmed - ground.effects())
        else:
            stage.pause(scale.stuck_s, scale.stuck_s)
        _check(ground, since=max(quiet_at, sent_at), is_strict=fsync == "always")


def _storm(ground: Ground) -> None:
    stage, scale = ground.stage, ground.scale
    plan = ["kill"] * scale.worker_kills + ["restart"] * scale.restarts + ["cut"] * scale.cuts
    stage.rng.shuffle(plan)
    for number, event in enumerate(plan, 1):
        stage.pause(*scale.gap_s)
        stage.say(f"{number}/{len(plan)} {event}")
        ground.revive()
        if event == "kill":
            victim = stage.rng.randrange(WORKERS)
            stage.kill(ground.workers[victim])
            ground.start_worker(victim)
        elif event == "restart":
            ground.node.kill()
            stage.pause(0.1, 1.0)
            ground.node.start()
        else:
            ground.proxy.drop()


def _check(ground: Ground, *, since: float, is_strict: bool) -> None:
    stage = ground.stage
    lost = ground.confirmed - ground.effects()
    journal = stage.journal
    ends = journal.of(EFFECT, QUEUE)
    starts = journal.of(START, QUEUE)
    repeated = sum(len(lines) - 1 for lines in ends.values())
    told = (
        f"{len(ground.confirmed)} accepted, {len(lost)} lost, {len(ends)} with an effect, {repeated} effects refused "
    )
    stage.say(f"{told}as repeats, {sum(map(len, starts.values()))} starts, {len(stage.killed)} processes killed")
    if not is_strict:
        return
    stage.same("lost", set(), lost)
    stage.same("effects of messages nobody sent", set(), ground.effects() - ground.confirmed)
    stage.same("dead letters", 0, stage.ask(open_letters))
    last = max(lines[-1].at for lines in ends.values())
    stage.check(last - since <= ground.scale.stuck_s, f"the last effect came {last - since:.1f} s after the last fault")


def chosen() -> RedisInstall:
    """What `CAMPAIGN_REDIS` says, else the oldest of this machine."""
    wanted = os.environ.get("CAMPAIGN_REDIS", "")
    for install in installed_redis():
        if install.version.startswith(wanted):
            return install
    raise RuntimeError(f"Redis {wanted} is not on this machine. Run: make servers")
