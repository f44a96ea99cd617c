"""Celery on RabbitMQ. As it comes: the prefork pool with one process, acks before the task runs, no confirms; prefetch
100 and no results, which makes it quicker. Option "safe": 100 threads, `acks_late`, `reject_on_worker_lost`, confirms.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from bench.side import PREFETCH, QUEUE, Marks

CONCURRENCY = {"": 1, "safe": 100}


def _task(url: str, marks: Marks | None, option: str) -> tuple[Celery, Any]:
    app = Celery("bench", broker=url)
    is_safe = option == "safe"
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        worker_prefetch_multiplier=PREFETCH // CONCURRENCY[option],
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        task_acks_late=is_safe,
        task_reject_on_worker_lost=is_safe,
        broker_transport_options={"confirm_publish": True} if is_safe else {},
    )

    @app.task(name="handle")  # type: ignore[untyped-decorator]
    def handle(text: str) -> None:
        assert marks is not None
        marks.handle_text(text)

    return app, handle


def publish(url: str, texts: list[str], option: str) -> None:
    """Send all, one after the other."""
    app, handle = _task(url, None, option)
    with app.producer_or_acquire() as producer:
        for text in texts:
            handle.apply_async((text,), producer=producer)


def consume(url: str, marks: Marks, option: str) -> None:
    """Consume until ended."""
    app, _ = _task(url, marks, option)
    pool = "threads" if option == "safe" else "prefork"
    app.worker_main(["worker", "-P", pool, "-c", str(CONCURRENCY[option]), "--loglevel", "ERROR", "--without-gossip"])
