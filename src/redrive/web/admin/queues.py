"""Queues and their limits over HTTP."""

from __future__ import annotations

from typing import Any

from redrive.core.units import parse_instant
from redrive.errors import NotFoundError
from redrive.views import control_view_document, queue_document, standings_document
from redrive.web.admin.call import Call
from redrive.web.admin.shown import as_shown


async def list_queues(call: Call) -> Any:
    """Every queue there is."""
    return as_shown(call, {"queues": [queue_document(queue) for queue in await call.service.queues()]})


async def show_queue(call: Call) -> Any:
    """One of them."""
    name = await known_queue(call)
    return as_shown(call, next(queue_document(queue) for queue in await call.service.queues() if queue.queue == name))


async def queue_tenants(call: Call) -> Any:
    """Where the tenants of a fair queue stand."""
    name = await known_queue(call)
    return as_shown(call, standings_document(name, await call.service.standings(name)))


async def list_limits(call: Call) -> Any:
    """What people have changed."""
    return as_shown(call, {"limits": [control_view_document(control) for control in await call.service.controls()]})


async def show_limits(call: Call) -> Any:
    """What people have changed of one queue; all of it null where nothing was."""
    return as_shown(call, control_view_document(await call.service.control(await known_queue(call))))


async def set_limits(call: Call) -> Any:
    """Change these, leave the others; running workers follow within seconds."""
    name, body = await known_queue(call), call.body
    control = await call.service.set_limits(name, batch=body.batch, rates=body.rates, actor=call.actor, note=body.note)
    return as_shown(call, control_view_document(control))


async def reset_limits(call: Call) -> Any:
    """The consumer's own word holds again."""
    return as_shown(
        call, control_view_document(await call.service.reset_limits(await known_queue(call), actor=call.actor))
    )


async def pause_queue(call: Call) -> Any:
    """Nobody takes messages of it; what is in hand ends."""
    name = await known_queue(call)
    return as_shown(
        call, control_view_document(await call.service.pause_queue(name, actor=call.actor, note=call.body.note))
    )


async def resume_queue(call: Call) -> Any:
    """Workers take messages of it again."""
    name = await known_queue(call)
    return as_shown(
        call, control_view_document(await call.service.resume_queue(name, actor=call.actor, note=call.body.note))
    )


async def quarantine(call: Call) -> Any:
    """Messages of these become dead letters at their next start."""
    name, body = await known_queue(call), call.body
    until = None if body.until is None else parse_instant(body.until, field="until")
    held = await call.service.quarantine(name, body.names(), until=until, actor=call.actor, note=body.note)
    return as_shown(call, control_view_document(held))


async def release(call: Call) -> Any:
    """Messages of these are handled again; what lies aside stays until it is redriven."""
    name, body = await known_queue(call), call.body
    done = await call.service.release(name, body.names(), actor=call.actor, note=body.note)
    return as_shown(call, control_view_document(done.control))


async def known_queue(call: Call) -> str:
    """The queue the path names. Raises `NotFoundError` where neither broker, app nor letters know it."""
    name = call.path["queue"]
    if name not in {queue.queue for queue in await call.service.queues()}:
        raise NotFoundError(f'There is no queue "{name}". Nothing was changed.')
    return name
