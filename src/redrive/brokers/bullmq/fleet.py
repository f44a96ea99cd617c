"""Fleet: a thread that says every second that this process's workers live, and puts back what the dead had in hand.

Authoritative: the queue's own sorted set `redrive:workers`, by the server's clock. A worker that has said nothing for
`ALIVE_MS` and was found missing for `SUSPECT_MS` more is dead: what it had in hand is put back, its start counted as
lost. That takes at most ALIVE_MS + SUSPECT_MS + two looks, some 7 s. Locks of Node's workers are respected: for them
BullMQ's own sweep runs here too, as often as in a Node worker.

A thread, because the event loop may hang in a handler while the worker lives. Failure by failure:

- the server is away: the rounds fail, and nothing else happens. When it is back every worker is missing for a moment;
  that is why a worker has to be found missing twice.
- this process stands still (SIGSTOP, a machine that sleeps) for longer than that: its work is put back, and what it
  still does with its old locks is refused.
- a thread of this process holds the interpreter's lock for longer than that: the same. Short enough to be at work again
  within ten seconds, long enough for what releases the lock now and then, as Python itself does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final

from redrive.brokers.bullmq.keys import Keys
from redrive.brokers.bullmq.scripts import Scripts
from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.errors import RedriveError
from redrive.redis.blocking import BlockingLink
from redrive.redis.link import Argument
from redrive.redis.scripts import packed

BEAT_MS: Final[Millis] = 1_000
LOOK_MS: Final[Millis] = 500
"""How often each process looks for the dead."""
ALIVE_MS: Final[Millis] = 4_000
"""How long one sign of life holds."""
SUSPECT_MS: Final[Millis] = 2_000
"""How long a worker is missing before it is taken for dead."""
FORGET_MS: Final[Millis] = 3_600_000
SWEEP_MS: Final[Millis] = 30_000
"""BullMQ's stalledInterval."""
MAX_STALLED: Final = 1
"""BullMQ's maxStalledCount. It is for Node's workers: redrive counts starts."""
JOIN_S: Final = 2.0
RESCUE_PARTS: Final = (
    "wait", "active", "prioritized", "events", "stalled", "paused", "meta", "marker",
)  # fmt: skip
_SWEEP_PARTS: Final = (
    "stalled", "wait", "active", "stalled-check", "meta", "paused", "marker", "events", "repeat",
)  # fmt: skip
NO_TOKENS: Final = packed([])


class Fleet:
    """The signs of one process. The thread starts with the first worker."""

    def __init__(self, link: BlockingLink, scripts: Scripts, *, instance: str, clock: Clock) -> None:
        self._link = link
        self._scripts = scripts
        self._instance = instance
        self._clock = clock
        self._workers: dict[Keys, set[str]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._swept_at: dict[Keys, float] = {}

    def knows(self, keys: Keys, worker: str) -> bool:
        """Whether this worker's signs are being given."""
        return worker in self._workers.get(keys, ())

    def be_here(self, keys: Keys, worker: str) -> None:
        """Blocking: once this returns the worker is known to live, and may take messages of this queue. Raises
        `RedriveError` where the server is away.
        """
        # The first sign before the first message: nobody is to find a lock of a worker it has never heard of.
        self._beat(keys, {worker}, alive_ms=ALIVE_MS)
        with self._lock:
            self._workers[keys] = {*self._workers.get(keys, ()), worker}
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._keep, name="redrive-redis-fleet", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Say that its workers are over, and stop. May be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        with self._lock:  # under which a thread is started: one that is not yet cannot be waited for
            thread = self._thread
        if thread is not None:
            thread.join(JOIN_S)
            for keys, workers in self._workers.items():
                with contextlib.suppress(RedriveError):
                    self._beat(keys, workers, alive_ms=0)
        self._link.close()

    def _keep(self) -> None:
        next_at = beat_at = self._clock.monotonic_ms()
        while not self._closing.wait(max(0.0, next_at - self._clock.monotonic_ms()) / 1_000):
            now_ms = self._clock.monotonic_ms()
            next_at = now_ms + LOOK_MS
            with self._lock:
                queues = list(self._workers)
            # All signs before the first look: a slow server must not make our own look late.
            if now_ms >= beat_at:
                beat_at = now_ms + BEAT_MS
                self._each(queues, self._give_sign)
            self._each(queues, self._rescue)
            self._each(queues, self._sweep_now_and_then)

    def _each(self, queues: Sequence[Keys], step: Callable[[Keys], None]) -> None:
        for keys in queues:
            if self._closing.is_set():
                return
            # A server that is away is the loop's to report. Whatever it is, the signs must not end with it.
            with contextlib.suppress(Exception):
                step(keys)

    def _give_sign(self, keys: Keys) -> None:
        self._beat(keys, self._workers[keys], alive_ms=ALIVE_MS)

    def _beat(self, keys: Keys, workers: set[str], *, alive_ms: Millis) -> None:
        args: list[Argument] = [self._instance, alive_ms, FORGET_MS, packed(sorted(workers))]
        self._link.run(self._scripts.beat, [keys.workers, keys.suspects], args)

    def _rescue(self, keys: Keys) -> None:
        self._link.run(self._scripts.rescue, rescue_keys(keys), rescue_args(keys))

    def _sweep_now_and_then(self, keys: Keys) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._swept_at.setdefault(keys, now_ms - SWEEP_MS) < SWEEP_MS:
            return
        self._swept_at[keys] = now_ms
        self._link.run(
            self._scripts.sweep,
            keys.several(*_SWEEP_PARTS),
            [MAX_STALLED, keys.base, self._clock.now(), SWEEP_MS],
        )


def rescue_keys(keys: Keys) -> list[str]:
    """KEYS of `rescue.lua`."""
    return [*keys.several(*RESCUE_PARTS), keys.workers, keys.suspects]


def rescue_args(keys: Keys, tokens: bytes = NO_TOKENS) -> list[Argument]:
    """ARGV of `rescue.lua`."""
    return [keys.base, SUSPECT_MS, tokens]


class Sign(Enum):
    """What one queue knows of a worker."""

    ALIVE = "its sign holds"
    MISSING = "it holds no more, and nobody has looked for it here for long enough: it had nothing in hand here"
    DEAD = "it was found missing for long enough"


def seen(time: Sequence[bytes], signs: Sequence[bytes], suspects: Sequence[bytes]) -> Iterator[tuple[str, Sign]]:
    """Each worker of a queue, and what is known of it: by the server's TIME, the signs with their scores (ZRANGE) and
    since when who is missing (HGETALL).
    """
    now = int(time[0]) * 1_000 + int(time[1]) // 1_000
    since = dict(zip(suspects[::2], suspects[1::2], strict=True))
    for member, until in zip(signs[::2], signs[1::2], strict=True):
        instance, _, worker = member.partition(b"|")
        is_dead = now - int(since.get(instance, now)) >= SUSPECT_MS
        sign = Sign.ALIVE if float(until) > now else Sign.DEAD if is_dead else Sign.MISSING
        yield worker.decode("utf-8", "surrogatepass"), sign
