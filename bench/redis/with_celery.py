"""Celery on Redis: 100 threads, `acks_late`, `reject_on_worker_lost`, no results. One worker process."""

from __future__ import annotations

from typing import Any

from celery import Celery

from bench.side import QUEUE, Marks

CONCURRENCY = 100


def _task(url: str, marks: Marks | None) -> tuple[Celery, Any]:
    app = Celery("bench", broker=url)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="handle")  # type: ignore[untyped-decorator]
    def handle(text: str) -> None:
        assert marks is not None
        marks.handle_text(text)

    return app, handle


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all, one after the other."""
    app, handle = _task(url, None)
    with app.producer_or_acquire() as producer:
        for text in texts:
            handle.apply_async((text,), producer=producer)


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    app, _ = _task(url, marks)
    app.worker_main(["worker", "-P", "threads", "-c", str(CONCURRENCY), "--loglevel", "ERROR", "--without-gossip"])
