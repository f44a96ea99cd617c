"""huey on SQLite: SqliteHuey with one thread worker, its default. Messages are at most once: taken is deleted."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

from huey import SqliteHuey

from bench.measure import SYNCHRONOUS, Run, Stopwatch, peak_rss_mb
from bench.work import Tally


def run(place: Path, texts: list[str], option: str) -> Run:
    """Enqueue one task per text, then let huey's own consumer run them. `option` "off" switches fsync off."""
    logging.disable(logging.CRITICAL)
    fsync = False if option == "off" else None
    huey = SqliteHuey("bench", filename=str(place / "huey.db"), fsync=fsync)
    tally, done = Tally(), threading.Event()

    @huey.task()  # type: ignore[untyped-decorator]
    def handle(text: str) -> None:
        if tally.add(json.loads(text)) == len(texts):
            done.set()

    publishing = Stopwatch()
    for text in texts:
        handle(text)
    publish_s, publish_cpu_s = publishing.wall_s, publishing.cpu_s

    consumer = huey.create_consumer(workers=1, periodic=False, initial_delay=0.01, max_delay=0.1)
    consuming = Stopwatch()
    consumer.start()
    done.wait()
    consume_s, consume_cpu_s = consuming.wall_s, consuming.cpu_s
    (level,) = huey.storage.conn.execute("pragma synchronous").fetchone()
    consumer.stop(graceful=True)
    tally.check(len(texts))
    return Run(
        messages=len(texts),
        publish_s=publish_s,
        consume_s=consume_s,
        cpu_s=publish_cpu_s + consume_cpu_s,
        synchronous=SYNCHRONOUS[level],
        rss_mb=peak_rss_mb(),
    )
