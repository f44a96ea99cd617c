"""Groups over HTTP: the problems that letters are, and what people make of them."""

from __future__ import annotations

from typing import Any

from redrive.core.letters.groups import GroupState, Ignored
from redrive.core.units import parse_instant
from redrive.views import group_document, group_view_document, groups_document
from redrive.web.admin.call import Call
from redrive.web.admin.problems import refuse
from redrive.web.admin.shown import as_shown


async def list_groups(call: Call) -> Any:
    """Those with the most waiting letters first."""
    query = call.query
    page = await call.service.groups(states=query.state, queue=query.queue, limit=query.limit, cursor=query.cursor)
    return as_shown(call, groups_document(page))


async def show_group(call: Call) -> Any:
    """One, with its deaths by the hour and its audit trail."""
    return as_shown(call, group_view_document(await call.service.group(call.path["group"])))


async def change_group(call: Call) -> Any:
    """Move it, or write on it; what is not named stays."""
    body = call.body
    if body.ignored is not None and body.to is not GroupState.IGNORED:
        raise refuse("invalid", '"ignored" goes with "to": "ignored". Nothing was changed.')
    if body.resolved_in is not None and body.to is not GroupState.RESOLVED:
        raise refuse("invalid", '"resolved_in" goes with "to": "resolved". Nothing was changed.')
    changed = await call.service.change_group(
        call.path["group"],
        actor=call.actor,
        to=body.to,
        note=body.note,
        assignee=body.assignee,
        ignored=_ignored(body.ignored),
        resolved_in=body.resolved_in,
    )
    return as_shown(call, group_document(changed))


def _ignored(given: Any) -> Ignored | None:
    if given is None:
        return None
    until = None if given.until is None else parse_instant(given.until, field="ignored.until")
    if (given.rate is None) != (given.per_ms is None):
        raise refuse("invalid", '"rate" and "per_ms" go together. Nothing was changed.')
    return Ignored(until=until, more=given.more, rate=given.rate, per_ms=given.per_ms)
