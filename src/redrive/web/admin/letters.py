"""Dead letters over HTTP: list, show, body, count, review."""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.responses import Response

from redrive.core.access import veil_of
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.ports import LetterSummary
from redrive.service import LetterView
from redrive.service.looking import COUNTED
from redrive.views import letter_view_document, page_document, review_document, stats_document
from redrive.web.admin.call import Call
from redrive.web.admin.shown import Shown, as_shown, looked_through, refuse_hidden, shown_of

MAX_INLINE_BYTES: Final = 262_144
"""A longer body is not part of a letter's document; `…/body` has it."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


async def list_letters(call: Call) -> Any:
    """One page, oldest first."""
    query = call.query
    selection = refuse_hidden(call, query.selection(call.now))
    page = await call.service.letters(selection, limit=query.limit, cursor=query.cursor)
    document = page_document(page)
    letters = zip(page.letters, document["letters"], strict=True)
    shown = [await _summary_shown(call, summary, each) for summary, each in letters]
    return {**document, "letters": [each for each in shown if each is not None]}


async def _summary_shown(call: Call, summary: LetterSummary, document: Any) -> Any:
    """What is hidden in a body may stand in the text of an error, so the letter is read where a rule is on its type.
    None: it is gone meanwhile, and nobody can tell what of it is hidden.
    """
    if not veil_of(call.app.settings.redact, summary.message_type, call.principal.role):
        return document
    found = await call.app.backend.letters.get(summary.id)
    if found is None:
        return None
    letter = found[0]

    def redacted() -> Any:
        shown = shown_of(call, letter.message)
        return document if shown is None else shown.document(document)

    return await looked_through(letter, redacted)


async def show_letter(call: Call) -> Any:
    """Everything about one letter, with what the role may not see hidden."""
    view = await call.service.letter(call.path["letter_id"])
    body = view.letter.message.original_body
    document = await looked_through(view.letter, lambda: _letter_shown(call, view))
    is_left_out = len(body) > MAX_INLINE_BYTES
    document["message"]["is_body_left_out"] = is_left_out
    if is_left_out:
        document["message"]["body"] = None
    return document


def _letter_shown(call: Call, view: LetterView) -> Any:
    document, message = letter_view_document(view), view.letter.message
    shown = shown_of(call, message)
    if shown is not None:
        exact = document.pop("message")
        document = {**shown.document(document), "message": _message_shown(shown, exact, message.original_body)}
    document["message"]["is_redacted"] = shown is not None
    return document


def _message_shown(shown: Shown, message: Any, body: bytes) -> Any:
    exact = {name: message.pop(name) for name in ("headers", "properties", "body")}
    as_it_is = shown.body(body) == body
    return {
        **shown.texts(message),
        "headers": shown.header_document(exact["headers"]),
        "properties": shown.texts(exact["properties"]),
        "body": exact["body"] if as_it_is else shown.body(body).decode("utf-8", "replace"),
    }


async def letter_body(call: Call) -> Response:
    """The exact bytes, as a download that no browser opens as a page; redacted where a rule says so."""
    letter: Letter = (await call.service.letter(call.path["letter_id"])).letter
    body = letter.message.original_body

    def redacted() -> tuple[bytes, bool]:
        shown = shown_of(call, letter.message)
        return (body, False) if shown is None else (shown.body(body), True)

    content, is_redacted = await looked_through(letter, redacted)
    name = _UNSAFE.sub("_", letter.id)[:100]
    headers = {"content-disposition": f'attachment; filename="{name}.bin"'}
    return Response(
        content,
        headers={**headers, "redrive-redacted": "true" if is_redacted else "false"},
        media_type="application/octet-stream",
    )


async def letter_stats(call: Call) -> Any:
    """Counts over a selection, and the largest groups."""
    selection, top = refuse_hidden(call, call.query.selection(call.now)), call.query.top
    stats = await call.service.stats(selection, top=top, up_to=COUNTED)
    groups = await call.service.group_counts(selection, limit=top, up_to=COUNTED)
    last_hour = await call.service.died_last_hour(selection)
    return as_shown(call, stats_document(stats, groups, last_hour=last_hour))


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
    selection = refuse_hidden(call, body.chosen(call.now))
    result = await call.service.review(selection, to, actor=call.actor, note=body.note, limit=body.limit)
    return review_document(result)
