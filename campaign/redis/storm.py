"""Campaign: jobs on Redis; workers killed 20 times, Redis killed and restarted 3 times, connections cut.

Nothing that was accepted is lost, nothing is stuck, each effect happened once (it is written under the idempotency
key), and what a killed worker was in the middle of runs again within ten seconds, the time in which Redis or the
machine stood still not counted. Redis writes its append-only file before it answers (`appendfsync always`); what
`everysec` may cost is `redis-everysec`'s to measure.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from campaign.journal import CONFIRMED, EFFECT, START
from campaign.kills import open_letters
from campaign.redis.app import QUEUE, effects_file
from campaign.redis.recovery import Excuses, Kill, recoveries
from campaign.stage import Process, Stage
from redrive.testing.servers.proxy import FaultProxy
from redrive.testing.servers.redis import RedisNode
from redrive.testing.servers.redis_install import RedisInstall, installed_redis

APP: Final = "campaign.redis.app:app"
WORKERS: Final = 3
RESTART_S: Final = 3.0
"""About what a restart costs, for the pace of the sender."""
FOUND_AGAIN_S: Final = 1.0
"""Until everybody has found a server that was restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of what. `stuck_s`: how long after the last fault the last message may be processed; `again_s`: how
    long after a kill what was in hand may start again; `counts_load`: without what a busy machine is late by.
    """

    messages: int
    worker_kills: int
    restarts: int
    cuts: int
    stuck_s: float
    gap_s: tuple[float, float] = (0.5, 2.0)
    patience_s: float = 300
    again_s: float = 10
    counts_load: bool = False


FULL: Final = Scale(messages=20_000, worker_kills=20, restarts=3, cuts=20, stuck_s=15, gap_s=(1.5, 5.0))
SMALL: Final = Scale(
    messages=600, worker_kills=2, restarts=1, cuts=2, stuck_s=60, again_s=30, gap_s=(0.2, 0.6), counts_load=True
)


def _is_at_work(worker: Process) -> bool:
    return "worker.started" in worker.log.read_text("utf-8", errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many messages the sender sends, and in how many seconds."""

    messages: int
    seconds: float


@dataclass(slots=True)
class Ground:
    """One campaign's server, proxy and processes."""

    stage: Stage
    plan: Plan
    patience_s: float
    node: RedisNode
    proxy: FaultProxy
    excuses: Excuses
    workers: list[Process] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    sender: Process | None = None

    def start(self) -> None:
        """Start everybody, and wait until they are at work."""
        self.stage.environment |= {
            "REDRIVE_BROKER": self.node.url_by(self.node.host, self.proxy.port),
            "REDRIVE_STORE": f"sqlite:///{self.stage.file}",
        }
        for number in range(WORKERS):
            self.start_worker(number)
        self.until("all workers are at work", lambda: all(map(_is_at_work, self.workers)))
        self.start_sender()
        self.until("the first effects have happened", lambda: len(self.effects()) > 0)

    def start_worker(self, number: int) -> None:
        """Start the worker of this number (again)."""
        process = self.stage.redrive(f"worker-{number}", "work", APP)
        self.workers[number:] = [process, *self.workers[number + 1 :]]

    def kill_worker(self, number: int) -> None:
        """Kill this worker, and start it again."""
        victim = self.workers[number]
        self.kills.append(Kill(pid=victim.pid, at=time.monotonic()))
        self.stage.kill(victim)
        self.start_worker(number)

    def restart_redis(self) -> None:
        """Kill the server, and start it again a moment later."""
        killed_at = time.monotonic()
        self.node.kill()
        self.stage.pause(0.1, 1.0)
        self.node.start()
        self.excuses.away.append((killed_at, time.monotonic() + FOUND_AGAIN_S, 1.0))

    def start_sender(self) -> None:
        """Start the sender (again)."""
        given = str(self.plan.messages), f"{self.plan.seconds:.1f}"
        self.sender = self.stage.python("sender", "campaign.redis.send", *given)

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

        self.stage.until(what, holds_now, seconds=self.patience_s)

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
    with (
        RedisNode(chosen(), settings={"appendfsync": "always"}) as node,
        FaultProxy(node.host, node.port) as proxy,
        Excuses(counts_load=scale.counts_load) as excuses,
    ):
        stage.say(f"{node.install}, appendfsync always")
        ground = Ground(
            stage=stage,
            plan=_plan(scale),
            patience_s=scale.patience_s,
            node=node,
            proxy=proxy,
            excuses=excuses,
        )
        ground.start()
        _storm(ground, scale)
        quiet_at = time.monotonic()
        ground.until("all is sent", lambda: len(ground.confirmed) == scale.messages)
        sent_at = time.monotonic()
        ground.until("every effect has happened", lambda: not ground.confirmed - ground.effects())
        _check(ground, scale, since=max(quiet_at, sent_at))


def _plan(scale: Scale) -> Plan:
    events = scale.worker_kills + scale.restarts + scale.cuts
    return Plan(messages=scale.messages, seconds=events * sum(scale.gap_s) / 2 + scale.restarts * RESTART_S)


def _storm(ground: Ground, scale: Scale) -> None:
    stage = ground.stage
    plan = ["kill"] * scale.worker_kills + ["restart"] * scale.restarts + ["cut"] * scale.cuts
    stage.rng.shuffle(plan)
    for number, event in enumerate(plan, 1):
        stage.pause(*scale.gap_s)
        stage.say(f"{number}/{len(plan)} {event}")
        ground.revive()
        if event == "kill":
            ground.kill_worker(stage.rng.randrange(WORKERS))
        elif event == "restart":
            ground.restart_redis()
        else:
            ground.proxy.drop()


def _check(ground: Ground, scale: Scale, *, since: float) -> None:
    stage = ground.stage
    effects = ground.effects()
    journal = stage.journal
    ends = journal.of(EFFECT, QUEUE)
    starts = journal.of(START, QUEUE)
    repeated = sum(len(lines) - 1 for lines in ends.values())
    lost = ground.confirmed - effects
    stage.say(f"{len(ground.confirmed)} accepted, {len(lost)} lost, {len(effects)} effects, {repeated} more refused as")
    stage.say(f"repeats, {sum(map(len, starts.values()))} starts, {len(stage.killed)} processes killed")
    stage.same("lost", set(), lost)
    stage.same("effects of messages nobody sent", set(), effects - ground.confirmed)
    stage.same("dead letters", 0, stage.ask(open_letters))
    _check_recoveries(ground, again_s=scale.again_s)
    last_at = max(lines[-1].at for lines in ends.values())
    last_s = last_at - since - ground.excuses.within(since, last_at)
    stage.check(last_s <= scale.stuck_s, f"the last effect came {last_s:.1f} s after the last fault")


def _check_recoveries(ground: Ground, *, again_s: float) -> None:
    stage, excuses = ground.stage, ground.excuses
    found = sorted(recoveries(stage.journal, ground.kills), key=lambda each: each.took_s)
    if not found:
        stage.say("nothing was in hand at a kill")
        return
    late = [
        each
        for each in found
        if each.again_at is None or each.took_s - excuses.within(each.killed_at, each.again_at) > again_s * each.losses
    ]
    for each in found:
        if each.again_at is not None and each.took_s > again_s:
            away_s = excuses.away_within(each.killed_at, each.again_at)
            machine_s = excuses.within(each.killed_at, each.again_at) - away_s
            stage.say(
                f"{each.key} took {each.took_s:.1f} s: lost {each.losses} starts, Redis away {away_s:.1f} s, the "
                f"machine {machine_s:.1f} s"
            )
    half_s, most_s = found[len(found) // 2].took_s, found[-1].took_s
    stage.say(f"{len(found)} were in hand at a kill; half ran again within {half_s:.1f} s, all in {most_s:.1f} s")
    stage.same("ran again too late", [], late)


def chosen() -> RedisInstall:
    """What `CAMPAIGN_REDIS` says, else the oldest of this machine."""
    wanted = os.environ.get("CAMPAIGN_REDIS", "")
    for install in installed_redis():
        if install.version.startswith(wanted):
            return install
    raise RuntimeError(f"Redis {wanted} is not on this machine. Run: make servers")
