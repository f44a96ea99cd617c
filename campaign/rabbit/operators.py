"""Campaign: many letters redriven to RabbitMQ by several people at once; runners, workers and the broker are killed.

As the campaign `redrives`, with the letters in a file and their queue on a node that is killed (kill -9) twice in the
middle of a round. Afterwards every effect happened once in its transaction, no letter was marked as sent twice, and no
job, letter or group says anything that is not so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from campaign import redrives
from campaign.journal import START
from campaign.rabbit.ground import APP, STRAGGLERS_S, WORKERS, Ground, ground
from campaign.redrives import Cast, trails
from campaign.stage import Stage
from redrive.core.redrive import JobState

QUEUE: Final = "orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(redrives.Scale):
    """`restarts`: rounds in whose middle the broker is killed, too."""

    restarts: int = 2
    version: str = ""


FULL: Final[Mapping[str, Scale]] = {"operators": Scale(letters=50_000, kills=30, rate=1_500, patience_s=1_800)}
SMALL: Final[Mapping[str, Scale]] = {
    "operators": Scale(letters=400, kills=4, rate=40, version="4", patience_s=STRAGGLERS_S)
}


def run(stage: Stage, scale: Scale) -> None:
    """Raises `CampaignError` where an effect is missing or came twice, or something is told that is not so."""
    with ground(stage, QUEUE, version=scale.version) as field:
        cast = Cast(stage=stage, scale=scale, app=APP, queue=QUEUE)
        field.start_workers()
        for number in range(WORKERS):
            field.await_worker(number)
        cast.lay_letters()
        restarts = {scale.kills * (number + 1) // (scale.restarts + 1) for number in range(scale.restarts)}
        for number in range(scale.kills):
            cast.play_round(number, (lambda: _restart(field)) if number in restarts else None)
            if number % 3 == 1:
                field.kill_worker(number % WORKERS)
        for number in range(WORKERS):
            field.await_worker(number)
        cast.to_the_end()
        field.until("no queue holds a message", lambda: not field.waiting(), seconds=scale.patience_s)
        _check(cast, len(restarts))


def _restart(field: Ground) -> None:
    field.node.kill()
    field.stage.say("kill -9 of the broker")
    field.node.start()


def _check(cast: Cast, restarts: int) -> None:
    stage, count = cast.stage, cast.scale.letters
    stage.same("effects", {f"{QUEUE} {name}": 1 for name in cast.names}, stage.effects())
    jobs = cast.check_jobs()
    sends = stage.ask(trails)[0]
    # A copy may be processed, and close its letter, before its sending is written down.
    stage.check(set(sends) <= {0, 1}, f"letters by sends in their audit: {sends}")
    recorded = sum(job.counts.sent for job in jobs)
    stage.check(recorded <= count, f"{count} letters, and jobs say that they sent {recorded}")
    failed = sum(job.state is JobState.FAILED for job in jobs)
    starts = sum(len(lines) for lines in stage.journal.of(START, QUEUE).values())
    stage.say(
        f"{count} letters, {len(jobs)} jobs, {len(stage.killed)} kills, broker killed {restarts} times: every effect "
        f"once; {recorded} sends on record, {starts} starts, {failed} jobs failed for good"
    )
