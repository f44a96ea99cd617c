"""Campaign: `kill -9` of workers, gateway, senders and a running redrive, at random moments.

Afterwards: nothing that was confirmed is lost; effects inside `delivery.transaction()` happened exactly once; others
were repeated only where the process that had the message in hand was killed, and each such repeat was announced as an
interrupted start; nothing is stuck.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from dataclasses import dataclass
from typing import Final

from campaign.journal import CONFIRMED, EFFECT, START, Line
from campaign.send import broken
from campaign.stage import Process, Stage
from redrive import Redrive
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.redrive import JobState
from redrive.testing.servers.processes import free_ports

WORKERS: Final = 2
QUEUES: Final = ("plain", "exact", "hooks")
START_S: Final = 1.0
"""About how long a killed process needs until it works again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much. `kills` fall on workers, gateway and senders while messages flow. `parts` are redrives that are killed:
    each takes the letters whose message id has this in it, `redrive_rate` a second.
    """

    plain: int
    exact: int
    hooks: int
    kills: int
    parts: tuple[str, ...]
    redrive_rate: int
    gap_s: tuple[float, float] = (0.3, 1.2)
    patience_s: float = 600

    @property
    def counts(self) -> dict[str, int]:
        """Messages by queue."""
        return {"plain": self.plain, "exact": self.exact, "hooks": self.hooks}

    @property
    def sending_s(self) -> float:
        """Long enough that every kill falls while messages are sent."""
        return self.kills * (sum(self.gap_s) / 2 + START_S)


FULL: Final = Scale(
    plain=4_000,
    exact=4_000,
    hooks=2_000,
    kills=20,
    parts=("plain-00", "exact-00", "plain-01", "exact-01", "hooks-00", "plain-02"),
    redrive_rate=30,
)
SMALL: Final = Scale(
    plain=240,
    exact=240,
    hooks=120,
    kills=5,
    parts=("plain-000",),
    redrive_rate=5,
    gap_s=(0.1, 0.6),
    patience_s=120,
)


class Fleet:
    """The processes that are meant to run; whatever is killed is started again."""

    def __init__(self, stage: Stage, scale: Scale) -> None:
        self._stage, self._scale = stage, scale
        (self._port,) = free_ports(1)
        self._running: dict[str, Process] = {}
        for role in self.roles:
            self.start(role)

    @property
    def roles(self) -> list[str]:
        """Everything that can be killed; workers count double because there are two."""
        workers = [f"worker-{number}" for number in range(WORKERS)]
        return [*workers, "gateway", "send-plain", "send-exact", "send-hooks"]

    def start(self, role: str) -> None:
        """Start the process of this role (again)."""
        stage, seconds = self._stage, str(self._scale.sending_s)
        if role.startswith("worker"):
            process = stage.redrive(role, "work", "campaign.app:app", "--queues", ",".join(QUEUES))
        elif role == "gateway":
            process = stage.redrive(role, "serve", "campaign.app:app", "--port", str(self._port))
        elif role == "send-hooks":
            url = f"http://127.0.0.1:{self._port}/hooks/campaign"
            process = stage.python(role, "campaign.send", "post", url, str(self._scale.hooks), seconds)
        else:
            queue = role.removeprefix("send-")
            count = str(self._scale.counts[queue])
            process = stage.python(role, "campaign.send", "publish", queue, count, seconds)
        self._running[role] = process

    def kill_one(self, role: str) -> None:
        """Wait until it works, then kill it in the middle of that, and start it again."""
        victim = self._running[role]
        self._stage.until(f"{role} works", lambda: self._works(role, victim), seconds=self._scale.patience_s)
        self._stage.pause(*self._scale.gap_s)
        self._stage.kill(victim)
        self.start(role)

    def _works(self, role: str, process: Process) -> bool:
        if role.startswith("worker"):
            return "worker.started" in process.log.read_text("utf-8", errors="replace")
        if role == "gateway":
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self._port)) == 0
        # A sender that is done cannot be killed at work any more; that is no reason to wait.
        confirmed = self._stage.journal.of(CONFIRMED, role.removeprefix("send-"))
        return not process.is_alive or any(line.pid == process.pid for lines in confirmed.values() for line in lines)


def run(stage: Stage, scale: Scale) -> None:
    """The whole campaign. Raises `CampaignError` with the transcript where a promise did not hold."""
    fleet = Fleet(stage, scale)
    _kill_while_messages_flow(stage, scale, fleet)
    stage.until("everything is confirmed", lambda: _confirmed(stage) == scale.counts, seconds=scale.patience_s)
    stage.until("no message waits or is in hand", lambda: _in_queues(stage) == 0, seconds=scale.patience_s)
    # A batch that was sent again after a kill may die twice, so messages are counted, not letters.
    stage.same("dead messages", sum(broken(queue, n) for queue, n in scale.counts.items()), stage.ask(_dead_messages))
    (stage.folder / "fixed").touch()
    _kill_a_running_redrive(stage, scale, fleet)
    stage.until("every letter was redriven", lambda: stage.ask(open_letters) == 0, seconds=scale.patience_s)
    stage.until("no message waits or is in hand", lambda: _in_queues(stage) == 0, seconds=scale.patience_s)
    stage.until("every redrive job is done", lambda: stage.ask(_jobs_done), seconds=scale.patience_s)
    check(stage, scale)


def _kill_while_messages_flow(stage: Stage, scale: Scale, fleet: Fleet) -> None:
    victims = [role for role in fleet.roles if not role.startswith("send")] * scale.kills
    senders = [role for role in fleet.roles if role.startswith("send")]
    plan = victims[: scale.kills - 2] + stage.rng.sample(senders, 2)
    stage.rng.shuffle(plan)
    for role in plan:
        fleet.kill_one(role)


def _kill_a_running_redrive(stage: Stage, scale: Scale, fleet: Fleet) -> None:
    """Each part is a job of its own, killed between its first letter and its last; a worker takes it over."""
    for number, part in enumerate(scale.parts):
        before = stage.ask(redriven_so_far)
        runner = _redrive(stage, "--text", part, "--rate", f"{scale.redrive_rate}/s")
        stage.until(
            f"the redrive of {part} sends", lambda before=before: stage.ask(redriven_so_far) > before, seconds=60
        )
        stage.pause(0, 0.5)
        stage.check(runner.is_alive, f"the redrive of {part} ended before it could be killed")
        stage.kill(runner)
        if number % 2:
            # The worker that takes orphaned jobs over is killed as well.
            fleet.kill_one("worker-0")
    last = _redrive(stage, "--all")
    stage.until("the last redrive ended", lambda: not last.is_alive, seconds=scale.patience_s)


def _redrive(stage: Stage, *options: str) -> Process:
    return stage.redrive("redrive", "dlq", "redrive", *options, "--yes", "--app", "campaign.app:app")


# ---------------------------------------------------------------------------------------------------- what must hold


def check(stage: Stage, scale: Scale) -> None:
    """Nothing lost, nothing stuck, effects as promised."""
    journal = stage.journal
    for queue in ("plain", "hooks"):
        effects = journal.of(EFFECT, queue)
        _nothing_lost(stage, queue, scale.counts[queue], found=set(effects))
        repeats_are_explained(stage, queue, effects=effects, starts=journal.of(START, queue))
    effects_in_file = stage.effects()
    _nothing_lost(stage, "exact", scale.exact, found=set(effects_in_file))
    stage.same("effects in a transaction that happened more than once", {}, _more_than_once(effects_in_file))
    stage.check(len(stage.killed) >= scale.kills, f"only {len(stage.killed)} processes were alive when killed")
    stage.say(f"{sum(scale.counts.values())} messages, {len(stage.killed)} kills: 0 lost, 0 stuck, exact effects once")


def _nothing_lost(stage: Stage, queue: str, count: int, *, found: set[str]) -> None:
    confirmed = set(stage.journal.of(CONFIRMED, queue))
    stage.same(f"confirmed on {queue}", count, len(confirmed))
    stage.same(f"lost on {queue}", set(), confirmed - found)
    stage.same(f"effects on {queue} that nobody sent", set(), found - confirmed)


def repeats_are_explained(
    stage: Stage, queue: str, *, effects: dict[str, list[Line]], starts: dict[str, list[Line]]
) -> None:
    """Every effect but a message's last belongs to a process that was killed with the message in hand, and a worker has
    announced the start that was interrupted.
    """
    interrupted = _announced(stage)
    repeated = {name: lines for name, lines in effects.items() if len(lines) > 1}
    for name, lines in repeated.items():
        survivors = [line.pid for line in lines[:-1] if line.pid not in stage.killed]
        stage.same(f"processes that repeated {name} without having been killed", [], survivors)
        stage.check(name in interrupted, f"{name} was repeated, and no delivery.interrupted event says so")
    runs = sum(len(lines) for lines in starts.values())
    stage.say(f"{queue}: {len(effects)} messages, {runs} starts, {len(repeated)} effects repeated, all explained")


def _announced(stage: Stage) -> set[str]:
    """Messages for which a worker announced an interrupted start: by id, and by key without its source."""
    found: set[str] = set()
    for number in range(WORKERS):
        for line in stage.logs(f"worker-{number}"):
            if "delivery.interrupted" in line:
                event = json.loads(line)
                found |= {event["message_id"], str(event["key"]).rpartition(":")[2]}
    return found


def _more_than_once(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count != 1}


# ---------------------------------------------------------------------------------------------------- looking


def _confirmed(stage: Stage) -> dict[str, int]:
    found = Counter(dict.fromkeys(QUEUES, 0))
    found.update({queue: len(stage.journal.of(CONFIRMED, queue)) for queue in QUEUES})
    return dict(found)


def _in_queues(stage: Stage) -> int:
    return stage.ask(_waiting)


async def _waiting(app: Redrive) -> int:
    depths = await app.backend.broker.depths()
    return sum(depth.ready + depth.scheduled + depth.leased for depth in depths if depth.queue in QUEUES)


async def open_letters(app: Redrive) -> int:
    return (await app.backend.letters.stats(Selection(states=OPEN_STATES))).total


async def _dead_messages(app: Redrive) -> int:
    found: set[tuple[str, str | None]] = set()
    cursor = None
    while True:
        page = await app.backend.letters.find(Selection(states=OPEN_STATES), limit=500, cursor=cursor)
        found |= {(letter.queue, letter.key) for letter in page.letters}
        cursor = page.cursor
        if cursor is None:
            return len(found)


async def redriven_so_far(app: Redrive) -> int:
    return sum(job.counts.sent for job in await app.backend.jobs.list(limit=100))


async def _jobs_done(app: Redrive) -> bool:
    return all(job.state is JobState.DONE for job in await app.backend.jobs.list(limit=100))
