"""litequeue: put each, then pop, handle, done. As it comes it does not sync a commit to disk (`synchronous` normal)."""

from __future__ import annotations

import json
from pathlib import Path

from litequeue import LiteQueue

from bench.measure import SYNCHRONOUS, Run, Stopwatch, peak_rss_mb
from bench.work import Tally


def run(place: Path, texts: list[str], option: str) -> Run:
    """Put every text, then pop, parse and finish each. `option` "full" makes every commit durable, as redrive's are."""
    queue = LiteQueue(place / "lite.db")
    if option == "full":
        queue.conn.execute("pragma synchronous=full")
    tally = Tally()

    publishing = Stopwatch()
    for text in texts:
        queue.put(text)
    publish_s, publish_cpu_s = publishing.wall_s, publishing.cpu_s

    consuming = Stopwatch()
    while (message := queue.pop()) is not None:
        tally.add(json.loads(message.data))
        queue.done(message.message_id)
    consume_s, consume_cpu_s = consuming.wall_s, consuming.cpu_s
    (level,) = queue.conn.execute("pragma synchronous").fetchone()
    queue.conn.close()
    tally.check(len(texts))
    return Run(
        messages=len(texts),
        publish_s=publish_s,
        consume_s=consume_s,
        cpu_s=publish_cpu_s + consume_cpu_s,
        synchronous=SYNCHRONOUS[level],
        rss_mb=peak_rss_mb(),
    )
