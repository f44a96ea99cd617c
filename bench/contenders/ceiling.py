"""The ceiling: the very statements a redrive run executed, with the same commits and fsyncs, and no Python around them.

A real run of `embedded` is recorded first (every statement of the connection that writes, with its values), then
played back on a fresh file. Only the playing back is timed. What redrive is slower than this is what its pipeline
costs: decoding, claims, policies, events, handlers, and handing things between threads.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.contenders import embedded
from bench.measure import Run, Stopwatch, peak_rss_mb

Statement = tuple[str, Sequence[Any]]


class Recording(sqlite3.Connection):
    """A connection that remembers what it executed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.done: list[Statement] = []

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute and remember."""
        self.done.append((sql, parameters))
        return super().execute(sql, parameters)


def run(place: Path, texts: list[str], _option: str) -> Run:
    """Record a run, then play it back."""
    empty, played = place / "empty.db", place / "played.db"
    with recorded() as connections:
        publish, mark = embedded.PUBLISH[""], partial(_mark, connections)
        asyncio.run(embedded.run_in(place / "recorded.db", texts, publish=publish, on_published=mark))
    writer = max(connections, key=_commits)
    asyncio.run(embedded.make_file(empty))
    shutil.copy(empty, played)
    publishing, consuming = _phases(writer.done)
    with closing(sqlite3.connect(played, isolation_level=None, cached_statements=512)) as connection:
        for pragma in _pragmas(writer.done):
            connection.execute(pragma)
        publish_s, publish_cpu_s = _play(connection, publishing)
        consume_s, consume_cpu_s = _play(connection, consuming)
        (left,) = connection.execute("select count(*) from redrive_message").fetchone()
    if left:
        raise RuntimeError(f"the played back run left {left} messages")
    return Run(
        messages=len(texts),
        publish_s=publish_s,
        consume_s=consume_s,
        cpu_s=publish_cpu_s + consume_cpu_s,
        synchronous="full",
        rss_mb=peak_rss_mb(),
    )


_BETWEEN: Statement = ("select 'published'", ())


@contextmanager
def recorded() -> Iterator[list[Recording]]:
    """Connections that are opened inside are `Recording`; yields them."""
    found: list[Recording] = []
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def connect_recording(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options, factory=Recording)
        assert isinstance(connection, Recording)
        found.append(connection)
        return connection

    sqlite3.connect = connect_recording  # type: ignore[assignment]
    try:
        yield found
    finally:
        sqlite3.connect = connect


def _mark(connections: list[Recording]) -> None:
    max(connections, key=_commits).done.append(_BETWEEN)


def _commits(connection: Recording) -> int:
    return sum(sql == "COMMIT" for sql, _ in connection.done)


def _phases(done: list[Statement]) -> tuple[list[Statement], list[Statement]]:
    """What was executed while publishing and while consuming; opening the file is left out."""
    middle = done.index(_BETWEEN)
    start = next(place for place, (sql, _) in enumerate(done) if sql.startswith("INSERT INTO redrive_message"))
    begin = max(place for place, (sql, _) in enumerate(done[:start]) if sql == "BEGIN IMMEDIATE")
    return done[begin:middle], done[middle + 1 :]


def _pragmas(done: list[Statement]) -> list[str]:
    return [sql for sql, _ in done if sql.startswith("PRAGMA") and "wal_checkpoint" not in sql and " = " in sql]


def _play(connection: sqlite3.Connection, statements: list[Statement]) -> tuple[float, float]:
    clock = Stopwatch()
    for sql, parameters in statements:
        connection.execute(sql, parameters).fetchall()
    return clock.wall_s, clock.cpu_s
