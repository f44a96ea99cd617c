"""Campaign: many letters are redriven by several people at once, and everything that does it is killed (kill -9).

Two operators redrive everything at the same time, one of them clicks twice, jobs are paused and stopped in the middle
and resumed, runners and workers are killed. Afterwards: every letter was sent exactly once, every effect happened once
in its transaction, the audit says so, and no job, letter or group says anything that is not so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from campaign.kills import open_letters, redriven_so_far
from campaign.stage import Process, Stage
from redrive import Redrive
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import Message
from redrive.core.redrive import Job, JobState
from redrive.core.settlement import Reason

QUEUE: Final = "exact"
WORKERS: Final = 2
PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`kills`: rounds in which a runner is killed. `rate`: sends a second of each operator, slow enough for that."""

    letters: int
    kills: int
    rate: int
    patience_s: float = 900


FULL: Final = Scale(letters=50_000, kills=30, rate=1_500)
SMALL: Final = Scale(letters=600, kills=4, rate=60, patience_s=120)


def run(stage: Stage, scale: Scale) -> None:
    """Raises `CampaignError` where a letter was lost, sent twice, or something is told that is not so."""
    cast = Cast(stage=stage, scale=scale, app="campaign.app:app", queue=QUEUE)
    cast.lay_letters()
    workers = [_worker(stage, number) for number in range(WORKERS)]
    for number in range(scale.kills):
        cast.play_round(number)
        if number % 3 == 1:
            stage.kill(workers[number % WORKERS])
            workers[number % WORKERS] = _worker(stage, number % WORKERS)
    cast.to_the_end()
    stage.until("no message waits or is in hand", lambda: stage.ask(_waiting) == 0, seconds=scale.patience_s)
    _check(cast)


def _worker(stage: Stage, number: int) -> Process:
    return stage.redrive(f"worker-{number}", "work", "campaign.app:app", "--queues", QUEUE)


def _check(cast: Cast) -> None:
    stage, count = cast.stage, cast.scale.letters
    stage.same("effects", dict.fromkeys(cast.names, 1), stage.effects())
    jobs = cast.check_jobs()
    stage.same("letters sent, by all jobs", count, sum(job.counts.sent for job in jobs))
    stage.same("letters by sends in their audit", {1: count}, stage.ask(trails)[0])
    stage.say(f"{count} letters, {len(jobs)} jobs, {len(stage.killed)} kills: each sent once, every effect once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who redrives, and what: the operators of one campaign, on the letters of one queue."""

    stage: Stage
    scale: Scale
    app: str
    queue: str

    @property
    def names(self) -> list[str]:
        """Of all messages."""
        return [f"{self.queue}-{number:06d}" for number in range(self.scale.letters)]

    def lay_letters(self) -> None:
        """All dead letters, into the store; what they died of is repaired."""
        (self.stage.folder / "fixed").touch()
        for start in range(0, self.scale.letters, PAGE):
            some = self.names[start : start + PAGE]
            self.stage.ask(lambda app, some=some: app.backend.letters.put([self._letter(app, each) for each in some]))
        self.stage.say(f"{self.scale.letters} letters lie in the store")

    def _letter(self, app: Redrive, name: str) -> Letter:
        now, number = app.clock.now(), int(name.rpartition("-")[2])
        body = json.dumps({"name": name, "work_ms": 0}).encode()
        return Letter(
            id=f"dl_{name}",
            system="campaign",
            queue=self.queue,
            dead_letter_queue=f"{self.queue}.dead",
            message=Message(id=name, key=name, tenant=f"t{number % 50}", body=body, published_at=now),
            reason=Reason(code="UNKNOWN_ARTICLE", text="the warehouse does not know this article"),
            attempt_count=1,
            fingerprint=f"fp-{number % 7}",
            group_title="an article nobody knows",
            first_failed_at=now,
            dead_lettered_at=now,
        )

    def operator(self, name: str, *more: str) -> Process:
        """Somebody redrives everything."""
        where = (self.queue, *more, "--actor", name, "--yes", "--app", self.app)
        return self.stage.redrive(name, "dlq", "redrive", *where)

    def play_round(self, number: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Both operators at once, the second one twice with the same request; then one of these things in the middle,
        and `meanwhile` before it.
        """
        stage, before = self.stage, self.stage.ask(redriven_so_far)
        rate = ("--rate", f"{self.scale.rate}/s")
        again = ("--request-key", f"round-{number}")
        runners = [self.operator("ann", *rate), *(self.operator("bob", *rate, *again) for _ in range(2))]
        stage.until("something is sent", lambda: stage.ask(redriven_so_far) > before or not _any(runners), seconds=120)
        stage.pause(0.05, 0.6)
        if meanwhile is not None:
            meanwhile()
        match number % 4:
            case 0 | 1:
                stage.kill(stage.rng.choice(runners))
            case 2:
                self._tell("pause")
                stage.kill(stage.rng.choice(runners))
            case _:
                self._tell("abort", "--yes")
        for runner in runners:
            stage.kill(runner)

    def _tell(self, verb: str, *more: str) -> None:
        """Somebody pauses or stops a job that is running, if one is."""
        stage = self.stage
        running = [job.id for job in stage.ask(_jobs) if job.state is JobState.RUNNING]
        if running:
            said = stage.redrive(verb, "dlq", verb, running[0], *more, "--app", self.app)
            stage.until(f"{verb} was said", lambda: not said.is_alive, seconds=120)

    def to_the_end(self) -> None:
        """What was held up goes on, what was stopped is sent by another job, and every job comes to its end."""
        stage, patience_s = self.stage, self.scale.patience_s
        for job in stage.ask(_jobs):
            if job.state in (JobState.PAUSED, JobState.FAILED):
                resumed = stage.redrive("resume", "dlq", "resume", job.id, "--app", self.app)
                stage.until("the resumed job ended", lambda it=resumed: not it.is_alive, seconds=patience_s)
        last = self.operator("ann")
        stage.until("the last redrive ended", lambda: not last.is_alive, seconds=patience_s)
        stage.until("no letter is open", lambda: stage.ask(open_letters) == 0, seconds=patience_s)
        closed = {"closed": self.scale.letters}
        stage.until("every letter is closed", lambda: stage.ask(_states) == closed, seconds=patience_s)
        # One whose runner was killed when it had sent everything waits for its lease to end, then for a worker.
        stage.until("no job is under way", lambda: not stage.ask(_under_way), seconds=patience_s)

    def check_jobs(self) -> list[Job]:
        """Nothing that is told of jobs, letters and groups is not so; all jobs."""
        stage = self.stage
        jobs = stage.ask(_jobs)
        odd = [
            job.id for job in jobs if job.counts.selected != job.counts.pending + job.counts.sent + job.counts.skipped
        ]
        stage.same("jobs whose counts do not add up", [], odd)
        keys = [job.request_key for job in jobs if job.request_key is not None]
        stage.same("jobs of a request that was made twice", sorted(set(keys)), sorted(keys))
        stage.same("letters held by a job", 0, stage.ask(trails)[1])
        stage.same("groups whose counts are wrong", 0, stage.ask(lambda app: app.backend.groups.recount()))
        return jobs


def _any(processes: list[Process]) -> bool:
    return any(process.is_alive for process in processes)


async def _jobs(app: Redrive) -> list[Job]:
    return await app.backend.jobs.list(limit=1_000)


async def _under_way(app: Redrive) -> list[str]:
    return [job.id for job in await _jobs(app) if job.state in (JobState.STAGED, JobState.RUNNING)]


async def _waiting(app: Redrive) -> int:
    found = [each for each in await app.backend.broker.depths([QUEUE]) if each.queue == QUEUE]
    return sum(each.ready + each.scheduled + each.leased for each in found)


async def _states(app: Redrive) -> dict[str, int]:
    return (await app.backend.letters.stats(Selection())).by_state


async def trails(app: Redrive) -> tuple[dict[int, int], int]:
    """(letters by how often their audit says "replayed", letters that a job holds)."""
    sends: Counter[int] = Counter()
    held, cursor = 0, None
    while True:
        page = await app.backend.letters.find(Selection(), limit=PAGE, cursor=cursor)
        held += sum(each.outstanding_job is not None for each in page.letters)
        for each in page.letters:
            found = await app.backend.letters.get(each.id)
            assert found is not None
            sends[sum(entry.action == ReviewState.REPLAYED for entry in found[1])] += 1
        cursor = page.cursor
        if cursor is None:
            return dict(sends), held
