"""Campaign: dead letters are redriven, and everything that runs the redrive is killed (kill -9) again and again.

Three times over: from redrive's own store; in place, from a dead-letter queue of the broker; and in place with messages
that carry no id at all. Each message comes back once as far as its effects go, and none is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

import pika

from campaign.journal import CONFIRMED
from campaign.kills import redriven_so_far
from campaign.rabbit.app import Order
from campaign.rabbit.ground import WORKERS, Ground, connection, ground
from campaign.rabbit.send import SENT
from campaign.stage import Process, Stage

QUEUE: Final = "orders"
DEAD: Final = "orders.dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`rate`: redriven messages a second, slow enough for the kills to fall in between."""

    messages: int
    kills: int
    rate: int
    in_place: bool = False
    has_ids: bool = True
    version: str = ""
    patience_s: float = 600


def _scales(messages: int, *, kills: int, rate: int, version: str = "") -> Mapping[str, Scale]:
    def scale(*, in_place: bool, has_ids: bool) -> Scale:
        return Scale(messages=messages, kills=kills, rate=rate, in_place=in_place, has_ids=has_ids, version=version)

    return {
        "redrive-store": scale(in_place=False, has_ids=True),
        "redrive-in-place": scale(in_place=True, has_ids=True),
        "redrive-in-place-without-ids": scale(in_place=True, has_ids=False),
    }


FULL: Final = _scales(20_000, kills=5, rate=1_000)
SMALL: Final = _scales(300, kills=2, rate=60, version="4")


def run(stage: Stage, scale: Scale) -> None:
    """Raises `CampaignError` where a redrive lost a message or gave it a second effect."""
    stage.environment["CAMPAIGN_ORDERS"] = "broken"
    with ground(stage, QUEUE, version=scale.version) as field:
        field.start_workers()
        for number in range(WORKERS):
            field.await_worker(number)
        if scale.in_place:
            _lay_dead_letters(field, scale)
        else:
            field.start_sender(scale.messages, 0)
            field.until("all is sent", lambda: len(field.confirmed) == scale.messages, seconds=scale.patience_s)
            field.until("all are dead", lambda: field.open_letters() == scale.messages, seconds=scale.patience_s)
        (stage.folder / "fixed").touch()
        for _ in range(scale.kills):
            _kill_in_the_middle(field, scale)
        _until_all_is_redriven(field, scale)
        _check(field, scale)


def _lay_dead_letters(field: Ground, scale: Scale) -> None:
    """Messages in the dead-letter queue as somebody else's consumer may have left them there."""
    names = [f"order-{number:06d}" for number in range(scale.messages)]
    with connection(field.vhost) as channel:
        channel.confirm_delivery()
        for name in names:
            properties = pika.BasicProperties(
                content_type="application/json", delivery_mode=2, message_id=name if scale.has_ids else None
            )
            channel.basic_publish("", DEAD, json.dumps(asdict(Order(name=name))).encode(), properties, mandatory=True)
    field.stage.journal.write_all(CONFIRMED, SENT, names)
    field.stage.say(f"{scale.messages} messages lie in {DEAD}")


def _kill_in_the_middle(field: Ground, scale: Scale) -> None:
    """Start a redrive, wait until it sends, then kill it and the workers, one of which may have taken it over."""
    stage, before = field.stage, _sent(field, scale)
    runner = _redrive(field, scale)
    field.until(
        "the redrive sends", lambda: _sent(field, scale) > before or not runner.is_alive, seconds=scale.patience_s
    )
    stage.pause(0.1, 0.8)
    stage.check(field.missing() != set(), "the redrive was over before it could be killed")
    stage.kill(runner)
    if not scale.in_place:
        for number in range(WORKERS):
            field.kill_worker(number)


def _sent(field: Ground, scale: Scale) -> int:
    return len(field.stage.effects()) if scale.in_place else field.stage.ask(redriven_so_far)


def _redrive(field: Ground, scale: Scale) -> Process:
    if scale.in_place:
        return _redrive_in_place(field, "--rate", f"{scale.rate}/s")
    where = ("--all", "--app", "campaign.rabbit.app:app")
    return field.stage.redrive("redrive", "dlq", "redrive", *where, "--rate", f"{scale.rate}/s", "--yes")


def _redrive_in_place(field: Ground, *options: str) -> Process:
    journal = str(field.stage.folder / "in-place.db")
    broker = field.stage.environment["REDRIVE_BROKER"]
    where = ("--broker", broker, DEAD, "--to", QUEUE, "--journal", journal, "--no-management")
    return field.stage.redrive("redrive", "dlq", "redrive", *where, *options, "--yes")


def _until_all_is_redriven(field: Ground, scale: Scale) -> None:
    """One more redrive; a worker takes up the stored jobs whose runners were killed. In place there is no worker for
    that: it is run again until nothing is left, as a person would who saw it die.
    """
    runners = [_redrive(field, scale)]

    def is_done() -> bool:
        if not field.missing():
            return True
        if scale.in_place and not runners[-1].is_alive:
            runners.append(_redrive(field, scale))
        return False

    field.until("every effect has happened", is_done, seconds=scale.patience_s)
    field.until("the redrive has ended", lambda: not runners[-1].is_alive, seconds=scale.patience_s)


def _check(field: Ground, scale: Scale) -> None:
    stage = field.stage
    field.until("no letter is open", lambda: not field.open_letters(), seconds=scale.patience_s)
    field.until("no queue holds a message", lambda: not field.waiting(), seconds=scale.patience_s)
    stage.same("effects", dict.fromkeys(field.expected(), 1), stage.effects())
    stage.say(f"{scale.messages} dead letters, redrive killed {scale.kills} times: 0 lost, 0 second effects")
