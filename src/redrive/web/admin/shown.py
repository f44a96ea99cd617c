"""What of a message and a letter is shown to whom: documents and bodies without what a role may not see."""

from __future__ import annotations

import json
from typing import Any, Final

from redrive.core.access import REDACTED, paths_below, redacted
from redrive.core.letters.letter import Letter
from redrive.core.message import Message
from redrive.core.wire import letter_document
from redrive.runtime.archive import line_of
from redrive.web.admin.call import Call

REDACTED_BODY: Final = "$redacted"
"""The tag of a body in a line that is not whole: nothing loads it as a letter."""


def hidden_of(call: Call, message: Message) -> tuple[Any, Any]:
    """The hidden paths of its body, and of its headers."""
    paths = call.hidden(message.properties.type)
    return paths_below(paths, "payload"), paths_below(paths, "headers")


def redacted_body(body: bytes, hidden: Any) -> bytes:
    """The body as JSON without what is hidden; all of it is hidden where it is no JSON."""
    try:
        return json.dumps(redacted(json.loads(body), hidden), ensure_ascii=False).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return REDACTED.encode()


def letter_line(call: Call, letter: Letter) -> bytes:
    """A letter as a line of JSON: whole and exact, or, where something is hidden, one that no import takes."""
    payload, headers = hidden_of(call, letter.message)
    if not payload and not headers:
        return line_of(letter)
    document = letter_document(letter)
    message = document["message"]
    message["headers"] = redacted(message["headers"], headers, is_caseless=True)
    for name in ("body", "original"):
        body = getattr(letter.message, name)
        if body is not None:
            message[name] = {REDACTED_BODY: redacted_body(body, payload).decode("utf-8", "replace")}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"
