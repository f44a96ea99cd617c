"""rq: its Worker, which forks for each job, or (option "simple") its SimpleWorker, which does not; no results kept.
Publishing: `enqueue_many`, a hundred in a call. One worker process.

A forked job counts in its parent's files: the child's own tally would be lost with it.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker, Worker

from bench.side import BEGIN, END, PREFETCH, QUEUE, Marks, count, folder

SEEN = "seen"

_marks: Marks | None = None


def handle(text: str) -> None:
    """The job: in this process, or in a child of it."""
    assert _marks is not None
    _marks.handle_text(text)


def handle_in_a_child(text: str) -> None:
    """The same, where the process ends with the job: what was seen is counted in a file."""
    order = json.loads(text)
    if not (folder() / BEGIN).exists():
        _mark(BEGIN, repeats=0)
    seen: Path = folder() / SEEN
    line = order["order_id"].encode() + b"\n"
    handle = os.open(seen, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(handle, line)
    os.close(handle)
    if seen.stat().st_size >= len(line) * count():
        lines = seen.read_bytes().splitlines()
        _mark(END, repeats=len(lines) - len(set(lines)))


def _mark(name: str, *, repeats: int) -> None:
    Marks.write(folder(), name, repeats=repeats)


def publish(url: str, texts: list[str], option: str) -> None:
    """Send all."""
    queue = Queue(QUEUE, connection=Redis.from_url(url))
    job = handle if option == "simple" else handle_in_a_child
    for start in range(0, len(texts), PREFETCH):
        queue.enqueue_many([Queue.prepare_data(job, (text,), result_ttl=0) for text in texts[start : start + PREFETCH]])


def consume(url: str, marks: Marks, option: str) -> None:
    """Consume until ended."""
    global _marks  # noqa: PLW0603 - rq finds a job by the name of its function
    _marks = marks
    logging.disable(logging.CRITICAL)
    kind: Any = SimpleWorker if option == "simple" else Worker
    kind([QUEUE], connection=Redis.from_url(url)).work()
