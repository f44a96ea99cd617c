"""persist-queue: SQLiteAckQueue, one thread: put each, then get, handle, ack."""

from __future__ import annotations

import json
from pathlib import Path

import persistqueue

from bench.measure import SYNCHRONOUS, Run, Stopwatch, peak_rss_mb
from bench.work import Tally


def run(place: Path, texts: list[str], _option: str) -> Run:
    """Put every text, then take, parse and acknowledge each. It has no retry, lease or idempotency to switch on."""
    queue = persistqueue.SQLiteAckQueue(str(place), auto_commit=True)
    tally = Tally()

    publishing = Stopwatch()
    for text in texts:
        queue.put(text)
    publish_s, publish_cpu_s = publishing.wall_s, publishing.cpu_s

    consuming = Stopwatch()
    for _ in texts:
        item = queue.get(raw=True)
        tally.add(json.loads(item["data"]))
        queue.ack(id=item["pqid"])
    consume_s, consume_cpu_s = consuming.wall_s, consuming.cpu_s
    (level,) = queue._conn.execute("pragma synchronous").fetchone()  # noqa: SLF001 - the only way to read it back
    queue.close()
    tally.check(len(texts))
    return Run(
        messages=len(texts),
        publish_s=publish_s,
        consume_s=consume_s,
        cpu_s=publish_cpu_s + consume_cpu_s,
        synchronous=SYNCHRONOUS[level],
        rss_mb=peak_rss_mb(),
    )
