"""Whether a selection means a letter that lies outside of any store: in a file, or whole in memory."""

from __future__ import annotations

from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection, has_headers


def is_meant(selection: Selection, letter: Letter) -> bool:
    """Whether every condition holds for this letter, as a store would say.

    >>> from redrive.testing.samples import letter
    >>> is_meant(Selection(queue="orders"), letter()), is_meant(Selection(tenant="nobody"), letter())
    (True, False)
    """
    message = letter.message
    wanted = (
        (selection.reason_code, letter.reason.code),
        (selection.error_type, letter.error_type),
        (selection.error_code, letter.error_code),
        (selection.fingerprint, letter.fingerprint),
        (selection.tenant, message.tenant),
        (selection.key, message.key),
        (selection.message_type, message.properties.type),
        (selection.message_id, message.id),
    )
    return (
        all(want is None or want == have for want, have in wanted)
        and (not selection.ids or letter.id in selection.ids)
        and selection.queue in (None, letter.queue, letter.dead_letter_queue)
        and (not selection.states or letter.state in selection.states)
        and (selection.since is None or selection.since <= letter.dead_lettered_at)
        and (selection.until is None or letter.dead_lettered_at < selection.until)
        and (selection.text is None or _contains(letter, selection.text.lower()))
        and has_headers(message.headers, selection.headers)
    )


def _contains(letter: Letter, text: str) -> bool:
    return any(text in each.lower() for each in (letter.reason.text, letter.message.id, letter.message.key or ""))
