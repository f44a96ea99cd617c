"""One worker process: python -m bench.fairness.worker URL FAIR HANDLER_MS CONCURRENCY RATE MOST OUT. Ends on SIGTERM,
or once it has seen MOST messages (0: never), and at once where its stdin does: whoever started it is gone then.

OUT gets one line for each message: tenant, when it was published, when its handler began (ms of the wall clock, which
all processes of one machine share); and at the end the processor time since it began to consume.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from bench.fairness.pause import pause
from redrive import Delivery, Event, Fair, Redrive

QUEUE: Final = "bench"


def main() -> int:
    """Work until told to stop, then write what was seen."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    url, fair, handler_ms, concurrency, rate, most, out = sys.argv[1:]
    app = Redrive("bench", broker=url, settings={"log_level": "error"})
    seen: list[tuple[str, float, float]] = []
    pause_s = float(handler_ms) / 1_000
    ready = Path(f"{out}.ready")

    @app.consumer(
        QUEUE,
        fair_by=Fair() if fair == "fair" else None,
        concurrency=int(concurrency),
        rate=None if rate == "-" else rate,
    )
    async def handle(payload: dict[str, float], delivery: Delivery) -> None:
        seen.append((delivery.tenant or "-", payload["at"], time.time() * 1_000))
        if pause_s:
            await pause(pause_s)
        if len(seen) == int(most):
            os.kill(os.getpid(), signal.SIGTERM)

    began = [0.0]

    def note(event: Event) -> None:
        if event.name == "worker.started":
            began[0] = _cpu_s()
            ready.touch()

    app.events.subscribe(note)
    code = app.worker(owns_process=True).main()
    Path(out).write_text(json.dumps({"seen": seen, "cpu_s": _cpu_s() - began[0]}))
    return code


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(main())
