"""Collecting over HTTP: one pass over a broker's own dead-letter queue into the store, and how far it is.

A pass is of the process that carries it out. It is stored message by message: killed half-way, what was stored is a
letter, the rest lies in its queue, and the next pass goes on. How far a pass was is forgotten with its process.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from redrive.errors import ConfigurationError, NotFoundError, RedriveError
from redrive.views import found_document
from redrive.web.admin.call import Call
from redrive.web.admin.names import encoded
from redrive.web.admin.passes import Pass
from redrive.web.admin.shown import shown_of


async def collect_queue(call: Call) -> Response:
    """Start a pass, or find the one that is running; it goes on beside the requests."""
    queue = await _dead_letter_queue(call)
    begun = call.passes.begin(queue, call.actor)
    if begun is not None:
        call.runners.start("collect_queue", lambda: _carry_out(call, begun))
    place = f"{call.root}/api/v1/queues/{encoded(queue)}/collect"
    return JSONResponse(call.passes.by_queue[queue].document(), 202, {"location": place})


async def _carry_out(call: Call, begun: Pass) -> None:
    body, clock = call.body, call.app.clock
    try:
        begun.done = await call.service.collect(
            begun.queue, limit=body.limit, as_queue=body.from_queue, on_collected=begun.seen
        )
        begun.ended("done", clock.now())
    except RedriveError as error:
        begun.ended("failed", clock.now(), str(error))
        raise
    except Exception as error:
        begun.ended("failed", clock.now(), f"A bug ended it: {type(error).__name__}. What was stored is a letter.")
        raise
    finally:
        if begun.state == "running":
            begun.ended("stopped", clock.now())


async def show_collect(call: Call) -> Any:
    """The last pass of this process over this queue."""
    queue = call.path["queue"]
    found = call.passes.by_queue.get(queue)
    if found is None:
        raise NotFoundError(f'No pass over "{queue}" is known here. Start one with POST.')
    return found.document()


async def list_collectable(call: Call) -> Any:
    """What the first messages would become; nothing is taken."""
    queue = await _dead_letter_queue(call)
    found, left = await call.service.collectable(queue, limit=call.query.limit, as_queue=call.query.from_queue)
    views = [shown_of(call, letter.message) for letter in found]
    document = found_document(found, left)
    letters = zip(views, document["letters"], strict=True)
    return {**document, "letters": [each if shown is None else shown.document(each) for shown, each in letters]}


async def _dead_letter_queue(call: Call) -> str:
    """The queue the path names. A queue of work is refused: what lies in it is not dead, unless its broker keeps what
    failed under the same name.
    """
    queue = call.path["queue"]
    if queue in call.service.consumed_queues and call.app.backend.failed is None:
        raise ConfigurationError(f'"{queue}" is consumed by this app: it holds messages, no dead letters. Not taken.')
    if queue not in {depth.queue for depth in await call.app.backend.broker.depths([queue])}:
        raise NotFoundError(f'There is no queue "{queue}". Nothing was taken.')
    return queue
