"""RabbitMQ: redrive beside the raw clients and the frameworks people use, on one private broker, in one run.

A contender is a module with `publish(url, texts, option)` and `consume(url, marks, option)`. Both are run in processes
of their own (`side.py`), one after the other, on a fresh virtual host each time (`runs.py`). Every handler parses its
400 bytes of JSON and counts the message.

What each is set to is written in its module's first lines: as it comes, and the way its own documentation says to make
it quick or safe. Queues: the raw clients use the kind redrive makes (quorum), the frameworks what they make themselves.
"""

from __future__ import annotations

from typing import Final

from bench.measure import Contender

_HERE: Final = "bench.rabbitmq"

REDRIVE: Final = Contender(name="redrive", title="redrive, everything on", module=f"{_HERE}.with_redrive", rate=9_000)
RAW: Final = Contender(name="aiormq", title="aiormq, bare loop", module=f"{_HERE}.with_aiormq", rate=5_000)

CONTENDERS: Final = {
    contender.name: contender
    for contender in (
        REDRIVE,
        Contender(
            name="redrive-callers",
            title="redrive, 100 callers",
            module=f"{_HERE}.with_redrive",
            option="callers",
            rate=6_000,
        ),
        RAW,
        Contender(name="pika", title="pika asyncio, bare loop", module=f"{_HERE}.with_pika", rate=9_000),
        Contender(name="aio-pika", title="aio-pika, bare loop", module=f"{_HERE}.with_aio_pika", rate=4_000),
        Contender(name="faststream", title="FastStream, prefetch 100", module=f"{_HERE}.with_faststream", rate=2_800),
        Contender(name="dramatiq", title="Dramatiq, as it comes", module=f"{_HERE}.with_dramatiq", rate=3_000),
        Contender(
            name="dramatiq-safe",
            title="Dramatiq, confirms",
            module=f"{_HERE}.with_dramatiq",
            option="safe",
            rate=1_000,
        ),
        Contender(name="taskiq", title="Taskiq, 100 at once", module=f"{_HERE}.with_taskiq", rate=1_800),
        Contender(name="celery", title="Celery, prefork, acks early", module=f"{_HERE}.with_celery", rate=1_400),
        Contender(
            name="celery-safe",
            title="Celery, threads, acks late, confirms",
            module=f"{_HERE}.with_celery",
            option="safe",
            rate=1_000,
        ),
    )
}
