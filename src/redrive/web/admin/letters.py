"""Dead letters over HTTP: list, show, body, count, review."""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.responses import Response

from redrive.core.access import redacted
from redrive.core.letters.letter import Letter, ReviewState
from redrive.views import letter_view_document, page_document, review_document, stats_document
from redrive.web.admin.call import Call
from redrive.web.admin.shown import hidden_of, redacted_body

MAX_INLINE_BYTES: Final = 262_144
"""A longer body is not part of a letter's document; `…/body` has it."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


async def list_letters(call: Call) -> Any:
    """One page, oldest first."""
    query = call.query
    return page_document(await call.service.letters(query.selection(call.now), limit=query.limit, cursor=query.cursor))


async def show_letter(call: Call) -> Any:
    """Everything about one letter, with what the role may not see hidden."""
    view = await call.service.letter(call.path["letter_id"])
    document = letter_view_document(view)
    message = document["message"]
    payload, headers = hidden_of(call, view.letter.message)
    body = _body_shown(view.letter.message.original_body, payload)
    is_left_out = body is None
    message["body"] = message["body"] if body is _AS_IT_IS else body
    message["headers"] = redacted(message["headers"], headers, is_caseless=True)
    message |= {"is_body_left_out": is_left_out, "is_redacted": bool(payload or headers)}
    return document


_AS_IT_IS: Final = object()


def _body_shown(body: bytes, hidden: Any) -> Any:
    """What a document shows of a body; None: too long for it."""
    if len(body) > MAX_INLINE_BYTES:
        return None
    return redacted_body(body, hidden).decode("utf-8", "replace") if hidden else _AS_IT_IS


async def letter_body(call: Call) -> Response:
    """The exact bytes, as a download that no browser opens as a page; redacted where a rule says so."""
    letter: Letter = (await call.service.letter(call.path["letter_id"])).letter
    payload, _headers = hidden_of(call, letter.message)
    body = letter.message.original_body
    name = _UNSAFE.sub("_", letter.id)[:100]
    headers = {"content-disposition": f'attachment; filename="{name}.bin"'}
    return Response(
        redacted_body(body, payload) if payload else body,
        headers={**headers, "redrive-redacted": "true" if payload else "false"},
        media_type="application/octet-stream",
    )


async def letter_stats(call: Call) -> Any:
    """Counts over a selection, and the largest groups."""
    selection, top = call.query.selection(call.now), call.query.top
    stats = await call.service.stats(selection, top=top)
    groups = await call.service.group_counts(selection, limit=top)
    return stats_document(stats, groups, last_hour=await call.service.died_last_hour(selection))


async def review_letters(call: Call) -> Any:
    """They were looked at."""
    return await _move(call, ReviewState.REVIEWED)


async def close_letters(call: Call) -> Any:
    """Nothing more will be done with them."""
    return await _move(call, ReviewState.CLOSED)


async def restore_letters(call: Call) -> Any:
    """A person has to decide again."""
    return await _move(call, ReviewState.PENDING)


async def _move(call: Call, to: ReviewState) -> Any:
    body = call.body
    result = await call.service.review(body.chosen(call.now), to, actor=call.actor, note=body.note, limit=body.limit)
    return review_document(result)
