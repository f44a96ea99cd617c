"""The app that the idle and wake-up measurements run as a real worker process."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from redrive import Redrive

QUEUE: Final = "bench"

app = Redrive("bench")


@app.consumer(QUEUE)
async def arrive(message: dict[str, Any]) -> None:
    """Write down how many milliseconds after its sending the message was in a handler."""
    late_ms = (time.monotonic() - message["sent_at"]) * 1_000
    handle = os.open(os.environ["BENCH_ARRIVALS"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(handle, f"{late_ms:.3f}\n".encode())
    os.close(handle)
