"""Everything that can happen between a worker and its broker, drawn from the campaign's seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from campaign.rabbit.ground import WORKERS, Ground
from redrive.testing.servers.proxy import Way


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How often what happens: workers killed, the broker restarted, connections broken, consumers away."""

    worker_kills: int = 0
    restarts: int = 0
    drops: int = 0
    cuts: int = 0
    half_closes: int = 0
    stalls: int = 0
    delays: int = 0
    refusals: int = 0
    sender_kills: int = 0
    away: int = 0
    gap_s: tuple[float, float] = (0.3, 1.5)
    away_s: tuple[float, float] = (3.0, 6.0)

    @property
    def events(self) -> dict[str, int]:
        """How often each event comes."""
        return {name: getattr(self, name) for name in EVENTS}

    @property
    def seconds(self) -> float:
        """About how long all of it takes."""
        each = sum(self.gap_s) / 2
        return sum(count * (each + COSTS_S.get(name, 0.0)) for name, count in self.events.items())


def storm(ground: Ground, weather: Weather, *, again: Callable[[], None]) -> None:
    """Let it all happen, in an order from the seed. `again` starts the sender anew."""
    plan = [name for name, count in weather.events.items() for _ in range(count)]
    ground.stage.rng.shuffle(plan)
    for number, event in enumerate(plan, 1):
        ground.stage.pause(*weather.gap_s)
        ground.stage.say(f"{number}/{len(plan)} {event.replace('_', ' ')}")
        if event == "sender_kills":
            _kill_sender(ground, again)
        else:
            EVENTS[event](ground, weather)


def _kill_sender(ground: Ground, again: Callable[[], None]) -> None:
    if ground.sender is not None and ground.sender.is_alive:
        ground.stage.kill(ground.sender)
        again()


def _kill_worker(ground: Ground, _weather: Weather) -> None:
    ground.kill_worker(ground.stage.rng.randrange(WORKERS))


def _restart(ground: Ground, _weather: Weather) -> None:
    ground.node.restart()


def _drop(ground: Ground, _weather: Weather) -> None:
    ground.proxy.drop()


def _cut(ground: Ground, _weather: Weather) -> None:
    way = ground.stage.rng.choice(list(Way))
    ground.proxy.cut_after(ground.stage.rng.randrange(1, 20_000), way)


def _half_close(ground: Ground, _weather: Weather) -> None:
    ground.proxy.half_close(ground.stage.rng.choice(list(Way)))


def _stall(ground: Ground, weather: Weather) -> None:
    ground.proxy.stall()
    ground.stage.pause(*weather.gap_s)
    ground.proxy.heal()


def _delay(ground: Ground, weather: Weather) -> None:
    ground.proxy.delay(0.02)
    ground.stage.pause(*weather.gap_s)
    ground.proxy.heal()


def _refuse(ground: Ground, weather: Weather) -> None:
    ground.proxy.refuse()
    ground.proxy.drop()
    ground.stage.pause(*weather.gap_s)
    ground.proxy.heal()


def _away(ground: Ground, weather: Weather) -> None:
    ground.stop_workers()
    ground.stage.pause(*weather.away_s)
    ground.start_workers()


EVENTS: Final[Mapping[str, Callable[[Ground, Weather], None]]] = {
    "worker_kills": _kill_worker,
    "restarts": _restart,
    "drops": _drop,
    "cuts": _cut,
    "half_closes": _half_close,
    "stalls": _stall,
    "delays": _delay,
    "refusals": _refuse,
    "sender_kills": lambda _ground, _weather: None,
    "away": _away,
}

COSTS_S: Final = {"worker_kills": 2.0, "restarts": 12.0, "stalls": 1.0, "delays": 1.0, "refusals": 1.0, "away": 8.0}
"""About how long an event takes by itself."""
