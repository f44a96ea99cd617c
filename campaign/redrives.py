"""Campaign: many letters are redriven by several people at once, and everything that does it is killed (kill -9).

Two operators redrive everything at the same time, one of them clicks twice, jobs are paused and stopped in the middle
and resumed, runners and workers are killed. Afterwards: every letter was sent exactly once, every effect happened once
in its transaction, the audit says so, and no job, letter or group says anything that is not so.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Final

from campaign.app import Order
from campaign.kills import open_letters, redriven_so_far
from campaign.stage import Process, Stage
from redrive import Redrive
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import Message
from redrive.core.redrive import Job, JobState
from redrive.core.settlement import Reason

QUEUE: Final = "exact"
DEAD: Final = "exact.dead"
WORKERS: Final = 2
PAGE: Final = 500
OPERATORS: Final = ("ann", "bob")


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
    (stage.folder / "fixed").touch()
    for start in range(0, scale.letters, PAGE):
        numbers = range(start, min(start + PAGE, scale.letters))
        stage.ask(lambda app, numbers=numbers: app.backend.letters.put([_letter(app, each) for each in numbers]))
    stage.say(f"{scale.letters} letters lie in the store")
    workers = [_worker(stage, number) for number in range(WORKERS)]
    for number in range(scale.kills):
        _round(stage, scale, number)
        if number % 3 == 1:
            stage.kill(workers[number % WORKERS])
            workers[number % WORKERS] = _worker(stage, number % WORKERS)
    _to_the_end(stage, scale)
    _check(stage, scale)


def _letter(app: Redrive, number: int) -> Letter:
    name = f"exact-{number:06d}"
    now = app.clock.now()
    body = json.dumps(asdict(Order(name=name, work_ms=0))).encode()
    return Letter(
        id=f"dl_{name}",
        system="campaign",
        queue=QUEUE,
        dead_letter_queue=DEAD,
        message=Message(id=name, key=name, tenant=f"t{number % 50}", body=body, published_at=now),
        reason=Reason(code="UNKNOWN_ARTICLE", text="the warehouse does not know this article"),
        attempt_count=1,
        fingerprint=f"fp-{number % 7}",
        group_title="an article nobody knows",
        first_failed_at=now,
        dead_lettered_at=now,
    )


def _worker(stage: Stage, number: int) -> Process:
    return stage.redrive(f"worker-{number}", "work", "campaign.app:app", "--queues", QUEUE)


def _operator(stage: Stage, name: str, *more: str) -> Process:
    return stage.redrive(name, "dlq", "redrive", QUEUE, *more, "--actor", name, "--yes", "--app", "campaign.app:app")


def _round(stage: Stage, scale: Scale, number: int) -> None:
    """Both operators at once, the second one twice with the same request; then one of these things in the middle."""
    before = stage.ask(redriven_so_far)
    rate = ("--rate", f"{scale.rate}/s")
    again = ("--request-key", f"round-{number}")
    runners = [_operator(stage, "ann", *rate), *(_operator(stage, "bob", *rate, *again) for _ in range(2))]
    stage.until("something is sent", lambda: stage.ask(redriven_so_far) > before or not _any(runners), seconds=120)
    stage.pause(0.05, 0.6)
    match number % 4:
        case 0 | 1:
            stage.kill(stage.rng.choice(runners))
        case 2:
            _tell(stage, "pause")
            stage.kill(stage.rng.choice(runners))
        case _:
            _tell(stage, "abort", "--yes")
    for runner in runners:
        stage.kill(runner)


def _any(processes: list[Process]) -> bool:
    return any(process.is_alive for process in processes)


def _tell(stage: Stage, verb: str, *more: str) -> None:
    """Somebody pauses or stops a job that is running, if one is."""
    running = [job.id for job in stage.ask(_jobs) if job.state is JobState.RUNNING]
    if running:
        said = stage.redrive(verb, "dlq", verb, running[0], *more, "--app", "campaign.app:app")
        stage.until(f"{verb} was said", lambda: not said.is_alive, seconds=120)


def _to_the_end(stage: Stage, scale: Scale) -> None:
    """What was held up goes on, what was stopped is sent by another job, and every job comes to its end."""
    for job in stage.ask(_jobs):
        if job.state in (JobState.PAUSED, JobState.FAILED):
            resumed = stage.redrive("resume", "dlq", "resume", job.id, "--app", "campaign.app:app")
            stage.until("the resumed job ended", lambda it=resumed: not it.is_alive, seconds=scale.patience_s)
    last = _operator(stage, "ann")
    stage.until("the last redrive ended", lambda: not last.is_alive, seconds=scale.patience_s)
    stage.until("no letter is open", lambda: stage.ask(open_letters) == 0, seconds=scale.patience_s)
    stage.until("no message waits or is in hand", lambda: stage.ask(_waiting) == 0, seconds=scale.patience_s)
    stage.until("every letter is closed", lambda: stage.ask(_states) == {"closed": scale.letters}, seconds=120)


def _check(stage: Stage, scale: Scale) -> None:
    names = [f"exact-{number:06d}" for number in range(scale.letters)]
    stage.same("effects", dict.fromkeys(names, 1), stage.effects())
    jobs = stage.ask(_jobs)
    stage.same("letters sent, by all jobs", scale.letters, sum(job.counts.sent for job in jobs))
    odd = [job.id for job in jobs if job.counts.selected != job.counts.pending + job.counts.sent + job.counts.skipped]
    stage.same("jobs whose counts do not add up", [], odd)
    stage.same("jobs still under way", [], [job.id for job in jobs if job.state in (JobState.STAGED, JobState.RUNNING)])
    keys = [job.request_key for job in jobs if job.request_key is not None]
    stage.same("jobs of a request that was made twice", sorted(set(keys)), sorted(keys))
    sends, held = stage.ask(_trails)
    stage.same("letters by sends in their audit", {1: scale.letters}, sends)
    stage.same("letters held by a job", 0, held)
    stage.same("groups whose counts are wrong", 0, stage.ask(lambda app: app.backend.groups.recount()))
    killed = len(stage.killed)
    stage.say(f"{scale.letters} letters, {len(jobs)} jobs, {killed} kills: each sent once, every effect once")


async def _jobs(app: Redrive) -> list[Job]:
    return await app.backend.jobs.list(limit=1_000)


async def _waiting(app: Redrive) -> int:
    found = [each for each in await app.backend.broker.depths([QUEUE]) if each.queue == QUEUE]
    return sum(each.ready + each.scheduled + each.leased for each in found)


async def _states(app: Redrive) -> dict[str, int]:
    return (await app.backend.letters.stats(Selection())).by_state


async def _trails(app: Redrive) -> tuple[dict[int, int], int]:
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
