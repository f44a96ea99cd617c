"""Campaign: the broker itself is killed (kill -9) while messages flow, are retried and die.

In the safe form of a topology nothing is lost. On the classic queues of systems B, C and D the broker's own
dead-lettering is not durable, and what it had in hand can go: that is counted and told, and is no failure of the
campaign. An effect in the transaction happens once in every case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from campaign.rabbit.ground import STRAGGLERS_S, WORKERS, Ground, ground
from campaign.rabbit.systems import finish, redrive_all
from campaign.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`is_safe`: the shape's safe form (the default shape has no other), of which no message may be lost. `quiet_s`:
    after so long without another effect, what is missing on classic queues will not come any more.
    """

    shape: str
    is_safe: bool
    messages: int
    kills: int
    gap_s: tuple[float, float] = (1.0, 4.0)
    version: str = ""
    quiet_s: float = 30.0
    patience_s: float = 900

    @property
    def seconds(self) -> float:
        """About how long the kills take."""
        return self.kills * (sum(self.gap_s) / 2 + 10)


_FORMS: Final = {
    "crash-orders": ("orders", True),
    "crash-bus-safe": ("bus", True),
    "crash-freeflow-safe": ("freeflow", True),
    "crash-files-safe": ("files", True),
    "crash-bus-classic": ("bus", False),
    "crash-freeflow-classic": ("freeflow", False),
    "crash-files-classic": ("files", False),
}
FULL: Final[Mapping[str, Scale]] = {
    name: Scale(shape=shape, is_safe=safe, messages=20_000, kills=5) for name, (shape, safe) in _FORMS.items()
}
SMALL: Final[Mapping[str, Scale]] = {
    name: Scale(
        shape=_FORMS[name][0],
        is_safe=_FORMS[name][1],
        messages=300,
        kills=1,
        gap_s=(0.5, 1.5),
        version=version,
        quiet_s=8.0,
        patience_s=STRAGGLERS_S,
    )
    for name, version in {"crash-orders": "3", "crash-bus-safe": "4", "crash-files-classic": "4"}.items()
}


def run(stage: Stage, scale: Scale) -> None:
    """Kill the node again and again. Raises `CampaignError` where a safe form lost one, or an effect came twice."""
    with ground(stage, scale.shape, safe=scale.is_safe, version=scale.version) as field:
        field.start_sender(scale.messages, scale.seconds)
        field.start_workers()
        for number in range(WORKERS):
            field.await_worker(number)
        for number in range(scale.kills):
            stage.pause(*scale.gap_s)
            field.node.kill()
            stage.say(f"{number + 1}/{scale.kills} kill -9 of the broker")
            field.node.start()
        if scale.is_safe:
            finish(field, scale.messages, patience_s=scale.patience_s)
        else:
            _measure(field, scale)


def _measure(field: Ground, scale: Scale) -> None:
    stage = field.stage
    field.until("everything is confirmed", lambda: len(field.confirmed) == scale.messages, seconds=scale.patience_s)
    _until_quiet(field, scale)
    (stage.folder / "fixed").touch()
    field.until("every dead letter was redriven", lambda: redrive_all(field) == 0, seconds=scale.patience_s)
    _until_quiet(field, scale)
    effects, lost = stage.effects(), field.missing()
    stage.same("effects that nobody ordered", set(), set(effects) - field.expected())
    stage.same("effects that happened more than once", {}, {name: n for name, n in effects.items() if n != 1})
    stage.say(
        f"classic queues, broker killed {scale.kills} times: {len(lost)} of {len(field.expected())} deliveries lost "
        f"({len(lost) / max(1, len(field.expected())):.2%}), every effect at most once"
    )


def _until_quiet(field: Ground, scale: Scale) -> None:
    """Wait until nothing but dead letters is missing, or effects have stopped coming: here some may never come."""
    last, left_s = -1, scale.patience_s
    while left_s > 0 and len(field.missing()) > field.open_letters():
        found = len(field.stage.effects())
        if found == last:
            return
        last = found
        field.stage.pause(scale.quiet_s, scale.quiet_s)
        left_s -= scale.quiet_s
