"""Campaign: systems B, C, D and the default shape, under everything that happens to workers, brokers and networks.

Workers are killed (kill -9), the broker is restarted, connections are reset, cut in the middle of a frame, half closed,
stalled and refused, consumers are away for a while. Then the cause of what failed is repaired and the dead letters are
redriven. Each message that was confirmed has had its effect in every queue that gets it, exactly once, and nothing
waits anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from campaign.rabbit.ground import STRAGGLERS_S, WORKERS, Ground, ground
from campaign.rabbit.weather import Weather, storm
from campaign.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many messages, and what happens to them."""

    shape: str
    messages: int
    weather: Weather
    version: str = ""
    patience_s: float = 900


_STORM: Final = Weather(
    worker_kills=10, restarts=5, drops=5, cuts=5, half_closes=4, stalls=4, delays=3, refusals=3, sender_kills=2, away=2
)
_SQUALL: Final = Weather(worker_kills=1, restarts=1, drops=1, cuts=1, half_closes=1, gap_s=(0.2, 0.5))

FULL: Final[Mapping[str, Scale]] = {
    shape: Scale(shape=shape, messages=20_000, weather=_STORM) for shape in ("bus", "freeflow", "files", "orders")
}
SMALL: Final[Mapping[str, Scale]] = {
    shape: Scale(shape=shape, messages=250, weather=_SQUALL, version=version, patience_s=STRAGGLERS_S)
    for shape, version in {"bus": "3", "freeflow": "4", "files": "4", "orders": "4"}.items()
}


def run(stage: Stage, scale: Scale) -> None:
    """One shape. Raises `CampaignError` where a message was lost, stuck, or had its effect twice."""
    with ground(stage, scale.shape, version=scale.version) as field:

        def start_sender() -> None:
            field.start_sender(scale.messages, scale.weather.seconds)

        start_sender()
        field.start_workers()
        for number in range(WORKERS):
            field.await_worker(number)
        storm(field, scale.weather, again=start_sender)
        finish(field, scale.messages, patience_s=scale.patience_s)


def finish(field: Ground, messages: int, *, patience_s: float) -> None:
    """Let everything come to rest, redrive what died, and compare the books."""
    stage = field.stage
    field.until("everything is confirmed", lambda: len(field.confirmed) == messages, seconds=patience_s)
    dead = settle_and_repair(field, patience_s=patience_s)
    effects = stage.effects()
    stage.same("effects that nobody ordered", set(), set(effects) - field.expected())
    stage.same("effects that happened more than once", {}, {name: n for name, n in effects.items() if n != 1})
    field.until("nothing waits in any queue", lambda: _left(field) == {}, seconds=patience_s)
    stage.say(
        f"{messages} messages, {len(effects)} effects, {len(stage.killed)} processes killed, {dead} dead letters "
        "redriven: 0 lost, 0 stuck, every effect once"
    )


def settle_and_repair(field: Ground, *, patience_s: float) -> int:
    """Wait until each effect has happened or its message is a dead letter; repair, redrive, wait for all effects.

    The number of dead letters there were.
    """
    stage = field.stage
    field.until(
        "each message is processed or a dead letter",
        lambda: len(field.missing()) <= field.open_letters(),
        seconds=patience_s,
    )
    dead = field.open_letters()
    (stage.folder / "fixed").touch()
    field.until("every dead letter was redriven", lambda: redrive_all(field) == 0, seconds=patience_s)
    field.until("every effect has happened", lambda: not field.missing(), seconds=patience_s)
    return dead


def redrive_all(field: Ground) -> int:
    """Redrive what is open, as a person would; how many letters are open after that."""
    if field.open_letters():
        command = ("dlq", "redrive", "--all", "--yes", "--app", "campaign.rabbit.app:app")
        field.stage.redrive("redrive", *command).popen.wait(300)
    return field.open_letters()


def _left(field: Ground) -> dict[str, int]:
    """What waits in queues in which nothing may wait: all but the ones for dead letters."""
    dead = {wiring.dead_letter_queue for wiring in field.shape.topology(False).wirings}  # noqa: FBT003
    return {name: count for name, count in field.waiting().items() if name not in dead and not name.endswith(".dead")}
