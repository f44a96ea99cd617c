"""What of a message and a letter is shown to whom: documents, bodies and lines without what a role may not see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from redrive.core.access import (
    MAX_SECRETS,
    REDACTED,
    Path,
    Veil,
    paths_below,
    redacted,
    secrets_of,
    veil_everywhere,
    veil_of,
)
from redrive.core.json_patch import parse_patch
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.message import Message
from redrive.core.redrive import JobOptions
from redrive.core.wire import letter_document, tagged
from redrive.runtime.archive import line_of
from redrive.web.admin.call import Call
from redrive.web.admin.problems import Problem, refuse

T = TypeVar("T")

EDIT_REFUSED: Final = "the edit does not fit"
"""What the reason begins with, why a job skips a letter whose body its patch cannot change."""
THREAD_BYTES: Final = 65_536
"""Of bodies, errors and tracebacks of one letter; more is redacted in a thread."""
REDACTED_BODY: Final = "$redacted"
"""The tag of a body in a line that is not whole: nothing loads it as a letter."""
ERROR_FIELDS: Final = frozenset({"reason_text", "group_title", "title", "error_text", "traceback"})
"""Fields of documents whose text was made of errors."""
COUNTED_BY: Final = frozenset({"by_queue", "by_reason", "by_tenant", "top_tenants", "versions", "tenants", "rates"})
"""Fields that are mappings whose keys are data."""
NAMES: Final = frozenset({"id", "group", "fingerprint", "previous", "outstanding_job", "letter_id", "state", "schema"})
"""Fields that name things redrive made itself: without them nothing could be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How one message is shown to one role. `secrets`: values that are hidden in it. `is_opaque`: something is hidden
    in a body that cannot be looked into, so that nobody knows what of it stands in its texts.
    """

    veil: Veil
    payload: Sequence[Path] = ()
    headers: Sequence[Path] = ()
    secrets: frozenset[str] = frozenset()
    is_opaque: bool = False

    @property
    def hides_payload(self) -> bool:
        """Whether anything of bodies is hidden by its place."""
        return bool(paths_below(self.veil.paths, "payload"))

    def body(self, body: bytes) -> bytes:
        """The body without what is hidden, JSON where it was JSON. All of it is hidden where it is no JSON and a field
        of it should be.
        """
        try:
            whole = json.loads(body)
            shown = self.texts(redacted(whole, self.payload))
        except (ValueError, RecursionError):
            return REDACTED.encode() if self.payload else self._text_of(body)
        # Of two equal names JSON keeps the last: what it dropped is still in the bytes.
        if not self.payload and shown == whole and self._text_of(body) == body:
            return body
        return json.dumps(shown, ensure_ascii=False).encode("utf-8", "surrogatepass")

    def _text_of(self, body: bytes) -> bytes:
        text = self.veil.text(body.decode("utf-8", "surrogateescape"), tuple(self.secrets))
        return text.encode("utf-8", "surrogateescape")

    def header_document(self, headers: Any) -> Any:
        """Headers as a document, without what is hidden."""
        return self.texts(redacted(headers, self.headers, is_caseless=True))

    def texts(self, value: Any) -> Any:
        """The same value with every text, number and name in it as it is shown."""
        match value:
            case str():
                return self.veil.text(value, tuple(self.secrets))
            case bool() | None:
                return value
            case int() | float():
                return value if self.texts(str(value)) == str(value) else REDACTED
            case list():
                return [self.texts(each) for each in value]
            case dict():
                return {self.texts(name): self.texts(each) for name, each in value.items()}
            case _:
                return value

    def document(self, value: Any, name: str = "") -> Any:
        """A document about it: texts made of errors, notes and all, but not the names that redrive gave."""
        match value:
            case str() if name in NAMES:
                return value
            case str() if name == "why" and self.hides_payload and value.startswith(EDIT_REFUSED):
                return EDIT_REFUSED  # the rest names places in the body
            case str() if name in ERROR_FIELDS and (self.veil.hides_errors or self.is_opaque):
                return REDACTED
            case str():
                return self.veil.text(value, tuple(self.secrets))
            case list():
                return [self.document(each, name) for each in value]
            case dict():
                keys = self._keys(list(value)) if name in COUNTED_BY else list(value)
                return {shown: self.document(each, key) for shown, (key, each) in zip(keys, value.items(), strict=True)}
            case _:
                return value

    def _keys(self, keys: Sequence[str]) -> list[str]:
        """Keys that are data, as they are shown. Those that look alike then are numbered: none is lost."""
        shown: dict[str, None] = {}
        for key in keys:
            text, number = self.texts(key), 1
            while (each := text if number == 1 else f"{text} {number}") in shown:
                number += 1
            shown[each] = None
        return list(shown)


def shown_of(call: Call, message: Message) -> Shown | None:
    """How this message is shown to who asks; None: all of it."""
    veil = veil_of(call.app.settings.redact, message.properties.type, call.principal.role)
    if not veil:
        return None
    payload, headers = paths_below(veil.paths, "payload"), paths_below(veil.paths, "headers")
    secrets = secrets_of(tagged(dict(message.headers)), headers, is_caseless=True) if headers else set()
    is_opaque = False
    for body in {message.body, message.original_body} if payload else ():
        try:
            secrets |= secrets_of(json.loads(body), payload)
        except (ValueError, RecursionError):
            is_opaque = True
    is_opaque = is_opaque or len(secrets) > MAX_SECRETS
    return Shown(
        veil=veil,
        payload=payload,
        headers=headers,
        secrets=frozenset() if is_opaque else frozenset(secrets),
        is_opaque=is_opaque,
    )


def is_whole(call: Call, message: Message) -> bool:
    """Whether who asks sees all of it."""
    return not veil_of(call.app.settings.redact, message.properties.type, call.principal.role)


async def looked_through(letter: Letter, work: Callable[[], T]) -> T:
    """What this makes of the letter; in a thread where there is much to look through: others are answered meanwhile.

    Between two texts, that is: while one pattern looks at one text Python lets nobody else run.
    """
    size = len(letter.message.body) + len(letter.message.original or b"")
    size += sum(len(each.error_text or "") + len(each.traceback or "") for each in letter.history)
    return await asyncio.to_thread(work) if size > THREAD_BYTES else work()


def shown_anywhere(call: Call) -> Shown | None:
    """How what belongs to no one message (a group, a job, a refusal) is shown to who asks; None: all of it."""
    veil = veil_everywhere(call.app.settings.redact, call.principal.role)
    return Shown(veil=veil) if veil else None


def as_shown(call: Call, document: Any) -> Any:
    """The document of a group, a job or a list, as who asks sees it."""
    shown = shown_anywhere(call)
    return document if shown is None else shown.document(document)


def job_as_shown(call: Call, document: Any) -> Any:
    """As `as_shown`; the patch of a job is hidden from whom anything of bodies is hidden: its values go into them. So
    are the values that hidden headers had to have.
    """
    shown = shown_anywhere(call)
    if shown is None:
        return document
    found = shown.document(document)
    job = found.get("job", found)
    if shown.hides_payload and job["options"].get("edit") is not None:
        job["options"]["edit"] = REDACTED
    hidden, asked = paths_below(shown.veil.paths, "headers"), document.get("job", document)["selection"]
    for pair, (name, _) in zip(job["selection"].get("headers", ()), asked.get("headers", ()), strict=True):
        if _is_hidden(name, hidden):
            pair[1] = REDACTED
    return found


def problem_as_shown(call: Call, problem: Problem) -> Problem:
    """A refusal without what patterns hide: it may quote what was asked, or what a store said."""
    shown = shown_anywhere(call)
    return problem if shown is None else replace(problem, detail=shown.veil.text(problem.detail))


def refuse_hidden(call: Call, selection: Selection) -> Selection:
    """The selection. Refused where it asks for a header that is hidden: who may ask for values finds them out."""
    shown = shown_anywhere(call)
    hidden = () if shown is None else paths_below(shown.veil.paths, "headers")
    if any(_is_hidden(name, hidden) for name, _ in selection.headers):
        raise refuse("forbidden", "One of these headers is hidden from your role: you cannot ask for its value.")
    return selection


def _is_hidden(header: str, paths: Sequence[Path]) -> bool:
    """Whether these paths hide the header, or a part of it."""
    return bool(redacted({header: ""}, [path[:1] for path in paths], is_caseless=True) != {header: ""})


def refuse_edit(call: Call, options: JobOptions) -> JobOptions:
    """The options. Refused where they edit bodies of which the role does not see all: a `test` tells what stands there,
    and a `copy` or `move` to where it is seen shows it. Where only patterns hide something, wherever it stands, it may
    be edited: but for a `test`, and for a place whose name is such a text, which tells whether it is there.
    """
    shown = shown_anywhere(call)
    if options.edit is None or shown is None:
        return options
    if shown.hides_payload:
        raise refuse("forbidden", "Parts of bodies are hidden from your role: you cannot edit them. Nothing was sent.")
    for each in parse_patch(options.edit) if shown.veil.patterns else ():
        steps = [*each.path, *each.source]
        if each.op == "test" or any(shown.veil.text(text) != text for text in (*steps, "/".join(steps))):
            text = (
                "Patterns hide texts from your role: an edit cannot ask for one, by a test or by the name of a place."
            )
            raise refuse("forbidden", f"{text} Nothing was sent.")
    return options


async def letter_line(call: Call, letter: Letter) -> bytes:
    """A letter as a line of JSON: whole and exact, or, where something is hidden, one that no import takes."""
    return await looked_through(letter, lambda: _line(call, letter))


def _line(call: Call, letter: Letter) -> bytes:
    shown = shown_of(call, letter.message)
    if shown is None:
        return line_of(letter)
    whole = letter_document(letter)
    document, message = shown.document({**whole, "message": None}), whole["message"]
    document["message"] = {
        **shown.document({**message, "headers": None, "properties": None, "body": None, "original": None}),
        "headers": shown.header_document(message["headers"]),
        "properties": shown.texts(message["properties"]),
        "id": shown.texts(message["id"]),
        "original": None,
    }
    for name in ("body", "original"):
        body = getattr(letter.message, name)
        if body is not None:
            document["message"][name] = {REDACTED_BODY: shown.body(body).decode("utf-8", "replace")}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"
