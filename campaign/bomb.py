"""Campaign: a message that kills its own worker. It ends as WORKER_LOST; its neighbours are processed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from campaign.app import Order
from campaign.journal import EFFECT, START
from campaign.stage import Stage
from redrive import Redrive
from redrive.core.letters.letter import AttemptOutcome, Letter
from redrive.core.letters.selection import Selection

QUEUE: Final = "bombs"
MAX_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Bombs among neighbours."""

    bombs: int
    neighbours: int
    patience_s: float = 180


FULL: Final = Scale(bombs=5, neighbours=500)
SMALL: Final = Scale(bombs=1, neighbours=60)


def run(stage: Stage, scale: Scale) -> None:
    """Let the bombs go off under a supervised fleet. Raises `CampaignError` where one took a neighbour with it."""
    bombs = {f"bomb-{number}" for number in range(scale.bombs)}
    neighbours = {f"neighbour-{number:05d}" for number in range(scale.neighbours)}
    stage.ask(lambda app: _publish(app, stage, bombs=bombs, neighbours=neighbours))
    stage.redrive("fleet", "work", "campaign.app:app", "--queues", QUEUE, "--processes", "2")
    stage.until("the bombs are dead letters", lambda: len(stage.ask(_letters)) >= scale.bombs, seconds=scale.patience_s)
    stage.until(
        "the neighbours are processed",
        lambda: set(stage.journal.of(EFFECT, QUEUE)) == neighbours,
        seconds=scale.patience_s,
    )
    for letter in stage.ask(_letters):
        _check(stage, letter, bombs)
    starts = stage.journal.of(START, QUEUE)
    stage.same("starts of the bombs", dict.fromkeys(bombs, MAX_ATTEMPTS), {name: len(starts[name]) for name in bombs})
    stage.say(f"{scale.bombs} bombs dead as WORKER_LOST, {scale.neighbours} neighbours processed")


async def _publish(app: Redrive, stage: Stage, *, bombs: set[str], neighbours: set[str]) -> None:
    names = sorted(bombs | neighbours)
    stage.rng.shuffle(names)
    orders = [Order(name=name, is_bomb=name in bombs) for name in names]
    await app.publish_many(QUEUE, [(asdict(order), {"message_id": order.name}) for order in orders])


async def _letters(app: Redrive) -> list[Letter]:
    page = await app.backend.letters.find(Selection(), limit=1_000)
    found = [await app.backend.letters.get(summary.id) for summary in page.letters]
    return [pair[0] for pair in found if pair is not None]


def _check(stage: Stage, letter: Letter, bombs: set[str]) -> None:
    stage.check(letter.message.id in bombs, f"{letter.message.id} is no bomb and yet dead: {letter.reason}")
    stage.same("reason code", "WORKER_LOST", letter.reason.code)
    stage.same("attempts", MAX_ATTEMPTS, letter.attempt_count)
    stage.same("history", [AttemptOutcome.INTERRUPTED] * MAX_ATTEMPTS, [entry.outcome for entry in letter.history])
