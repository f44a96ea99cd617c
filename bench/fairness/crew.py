"""The worker processes of one run. They end with this one, however it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.measure import ROOT

WORKERS: Final = 4
HANDLER_MS: Final = 10


class Crew:
    """Started by `with`; whatever is still running at its end is killed."""

    def __init__(
        self,
        url: str,
        place: Path,
        *,
        fair: bool = False,
        handler_ms: int = HANDLER_MS,
        count: int = WORKERS,
        concurrency: int = 1,
        rate: str = "-",
        most: int = 0,
    ) -> None:
        """`most`: a worker ends by itself once it has seen so many messages."""
        self._outs = [place / f"worker-{number}.json" for number in range(count)]
        self._arguments = [url, "fair" if fair else "plain", str(handler_ms), str(concurrency), rate, str(most)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for out in self._outs:
            arguments = [sys.executable, "-m", "bench.fairness.worker", *self._arguments, str(out)]
            # They end when this pipe does: also where this process is killed.
            self._processes.append(subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    async def started(self) -> None:
        """All of them consume."""
        async with asyncio.timeout(120):
            while not all(out.with_name(f"{out.name}.ready").exists() for out in self._outs):
                await asyncio.sleep(0.1)

    def stop(self) -> list[dict[str, Any]]:
        """Drain them and read what they saw."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> list[dict[str, Any]]:
        """Wait until they have ended, and read what they saw."""
        for process in self._processes:
            process.wait(120)
        return [json.loads(out.read_text()) for out in self._outs]
