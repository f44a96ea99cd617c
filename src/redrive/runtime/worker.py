"""Worker: takes, runs, drains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redrive.runtime.app import Redrive


class Worker:
    """Consumes queues of one app until it is stopped."""

    def __init__(
        self, app: Redrive, queues: Sequence[str] | None = None, *, name: str | None = None, owns_process: bool = False
    ) -> None:
        self.app = app

    @property
    def is_ready(self) -> bool:
        """Whether every queue is being consumed: false while starting, draining, or while the broker is away."""
        raise NotImplementedError

    async def run(self) -> None:
        """Consume until `stop`."""
        raise NotImplementedError

    def stop(self, *, at_once: bool = False) -> None:
        """Drain: nothing new starts; `run` returns when all in hand has ended, or its grace period is over."""
        raise NotImplementedError

    def main(self) -> int:
        """Run in this process with its signals until stopped; the exit code."""
        raise NotImplementedError
