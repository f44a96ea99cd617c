"""Redis: redrive beside BullMQ on Node.js and in Python, and the Python frameworks people use, in one run.

A contender is a module with `publish(url, texts, option)` and `consume(url, marks, option)`, or a file of Node's that
does the same. Both halves are run in processes of their own (`bench.apart`), one after the other, on a server of their
own each time (`runs.py`): an append-only file, written to disk every second, for all of them alike. Every handler
parses its 400 bytes of JSON and counts the message.

What each is set to is written in its module's first lines: what its own documentation advises for messages that must
not be lost, where that is a choice. The peers lie in environments of their own (`peers.py`).
"""

from __future__ import annotations

from typing import Final

from bench.measure import Contender

_HERE: Final = "bench.redis"

REDRIVE: Final = Contender(name="redrive", title="redrive, everything on", module=f"{_HERE}.with_redrive", rate=8_000)
NODE: Final = Contender(name="bullmq-node", title="BullMQ, Node.js", module="bullmq", rate=7_500)
PYTHON: Final = Contender(name="bullmq-python", title="BullMQ, Python", module=f"{_HERE}.with_bullmq", rate=1_100)

CONTENDERS: Final = {
    contender.name: contender
    for contender in (
        REDRIVE,
        Contender(
            name="redrive-plain",
            title="redrive, no idempotency",
            module=f"{_HERE}.with_redrive",
            option="plain",
            rate=9_000,
        ),
        Contender(
            name="redrive-callers",
            title="redrive, 100 callers",
            module=f"{_HERE}.with_redrive",
            option="callers",
            rate=8_000,
        ),
        NODE,
        PYTHON,
        Contender(name="redis-py", title="redis-py, bare loop", module=f"{_HERE}.with_redis_py", rate=5_500),
        Contender(
            name="redis-py-pipelined",
            title="redis-py, bare, 100 in a pipeline",
            module=f"{_HERE}.with_redis_py",
            option="pipelined",
            rate=25_000,
        ),
        Contender(name="celery", title="Celery, threads, acks late", module=f"{_HERE}.with_celery", rate=700),
        Contender(name="dramatiq", title="Dramatiq, 8 threads", module=f"{_HERE}.with_dramatiq", rate=1_900),
        Contender(name="taskiq", title="Taskiq, stream, 100 at once", module=f"{_HERE}.with_taskiq", rate=1_900),
        Contender(name="arq", title="arq, 100 at once", module=f"{_HERE}.with_arq", rate=1_000),
        Contender(name="saq", title="saq, 50 at once", module=f"{_HERE}.with_saq", rate=1_200),
        Contender(name="rq-simple", title="rq, SimpleWorker", module=f"{_HERE}.with_rq", option="simple", rate=220),
        Contender(name="rq", title="rq, a fork for each job", module=f"{_HERE}.with_rq", rate=60),
    )
}
