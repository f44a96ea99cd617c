r"""The filter language: a line of words that says which letters, written alike in commands, API and links.

    queue:orders error:TIMEOUT tenant:acme since:2h state:pending state:reviewed header:x-region=eu "card declined"

Each `word:value` is one condition, all of them hold together; `state:` may be said several times and means any of
them, as do `id:` and, each a condition of its own, `header:`. A value with spaces is quoted: `tenant:"acme inc"`;
within quotes \" is a quote and \\ a backslash. What stands alone is searched for in reason, message id and key; more
than one word of it is quoted. An empty line is every letter.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.units import UnixMs, duration_ms, parse_instant, rfc3339
from redrive.errors import ConfigurationError

MAX_FILTER_CHARS: Final = 10_000

WORDS: Final = {
    "queue": "queue",
    "state": "states",
    "id": "ids",
    "message": "message_id",
    "key": "key",
    "tenant": "tenant",
    "type": "message_type",
    "reason": "reason_code",
    "error": "error_code",
    "class": "error_type",
    "group": "fingerprint",
    "header": "headers",
    "since": "since",
    "until": "until",
}
"""{word: field of `Selection`}. `error` is the error's code, `class` its type."""
ALSO: Final = {"code": "error"}
"""{other word: the word it is read as}"""

_TEXT: Final = "text"
_TOKEN: Final = re.compile(
    r'\s*(?:(?P<word>[A-Za-z_]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>(?(word)[^\s"]*|[^\s"]+)))(?=\s|$)',
    re.DOTALL,
)
_RELATIVE: Final = re.compile(r"\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)", re.ASCII)
_BARE: Final = re.compile(r'[^\s"\\:]+')


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    word: str
    value: str
    at: int


def parse(line: str, *, now: UnixMs) -> Selection:
    """The selection this line means; relative times count back from `now`.

    Raises `ConfigurationError` naming the place (from 1) and what is known; the caller shows it as it is.

    >>> parse('queue:orders state:pending "card declined"', now=0).text
    'card declined'
    """
    if len(line) > MAX_FILTER_CHARS:
        raise ConfigurationError(f"The filter has {len(line)} characters (maximum {MAX_FILTER_CHARS}).")
    found: dict[str, Any] = {}
    for term in _terms(line):
        _add(found, term, now=now)
    for name in ("ids", "headers"):
        if name in found:
            found[name] = tuple(dict.fromkeys(found[name]))
    if "states" in found:
        found["states"] = frozenset(found["states"])
    return Selection(**found)


def _terms(line: str) -> Iterator[_Term]:
    at = 0
    end = len(line.rstrip())
    while at < end:
        token = _TOKEN.match(line, at)
        if token is None:
            raise _unclosed(line, at)
        quoted = token["quoted"]
        value = token["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        start = (
            token.start("word")
            if token["word"] is not None
            else token.start("bare")
            if quoted is None
            else token.start("quoted") - 1
        )
        word = (token["word"] or _TEXT).lower()
        yield _Term(word=ALSO.get(word, word), value=value, at=start)
        at = token.end()


def _add(found: dict[str, Any], term: _Term, *, now: UnixMs) -> None:
    name = _TEXT if term.word == _TEXT else WORDS.get(term.word)
    if name is None:
        near = difflib.get_close_matches(term.word, WORDS, n=1)
        hint = f'Did you mean "{near[0]}:"? ' if near else ""
        known = f"{hint}Known: {', '.join(WORDS)}. Quote what is only searched for."
        raise _wrong(term, f'no filter is called "{term.word}:"', known)
    if not term.value:
        raise _wrong(term, f'"{term.word}:" has no value', "Write word:value.")
    if name in _MANY:
        found.setdefault(name, []).append(_MANY[name](term))
        return
    if name in found:
        hint = "Quote words that belong together." if name == _TEXT else "All conditions hold together: say it once."
        raise _wrong(term, f"{'a text' if name == _TEXT else term.word + ':'} is given twice", hint)
    found[name] = _time(term, now=now) if name in ("since", "until") else term.value


def _state(term: _Term) -> ReviewState:
    try:
        return ReviewState(term.value.lower())
    except ValueError:
        raise _wrong(term, f'"{term.value}" is no review state', f"Known: {', '.join(ReviewState)}.") from None


def _header(term: _Term) -> tuple[str, str]:
    name, equals, value = term.value.partition("=")
    if not name or not equals:
        raise _wrong(term, "a header is a name and a value", "Write header:name=value.")
    return name, value


_MANY: Final[dict[str, Callable[[_Term], Any]]] = {
    "states": _state,
    "ids": lambda term: term.value,
    "headers": _header,
}


def _time(term: _Term, *, now: UnixMs) -> UnixMs:
    try:
        if _RELATIVE.fullmatch(term.value):
            return now - duration_ms(term.value, field=term.word)
        return parse_instant(term.value, field=term.word)
    except ConfigurationError:
        hint = "Write 2h for two hours ago, or an instant such as 2026-01-31T12:00:00+01:00."
        raise _wrong(term, f'"{term.value}" is no time', hint) from None


def _wrong(term: _Term, text: str, hint: str) -> ConfigurationError:
    return ConfigurationError(f"Filter, at {term.at + 1}: {text}. Nothing was read.", hint=hint)


def _unclosed(line: str, at: int) -> ConfigurationError:
    place = at + len(line[at:]) - len(line[at:].lstrip())
    text = f"Filter, at {place + 1}: a quote that is not closed, or one inside a word. Nothing was read."
    return ConfigurationError(text, hint='Quote the whole value: word:"a b".')


def render(selection: Selection) -> str:
    """The line that `parse` reads as this selection.

    >>> render(Selection(queue="orders", text="card declined"))
    'queue:orders "card declined"'
    """
    terms = [f"{word}:{_written(value)}" for word, name in WORDS.items() for value in _values(selection, name)]
    return " ".join([*terms, *([] if selection.text is None else [_quoted(selection.text)])])


def _values(selection: Selection, name: str) -> list[str]:
    value = getattr(selection, name)
    if name == "states":
        return sorted(str(state) for state in value)
    if name == "headers":
        return [f"{header}={text}" for header, text in value]
    if name == "ids":
        return list(value)
    if value is None:
        return []
    return [rfc3339(value) if name in ("since", "until") else value]


def _written(value: str) -> str:
    return value if _BARE.fullmatch(value) else _quoted(value)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def joined(selection: Selection, other: Selection) -> Selection:
    """Both at once: what is given in only one of them holds. Raises `ConfigurationError` where both say something
    different.
    """
    given: dict[str, Any] = {}
    for name in (*WORDS.values(), _TEXT):
        one, two = getattr(selection, name), getattr(other, name)
        if name == "headers":
            given[name] = tuple(dict.fromkeys((*one, *two)))
        elif one and two and one != two:
            word = next((word for word, field in WORDS.items() if field == name), "text")
            raise ConfigurationError(
                f"{word}: is given twice, in the filter and beside it. Nothing was read.", hint="Say it once."
            )
        elif two not in (None, (), frozenset()):
            given[name] = two
    return replace(selection, **given)
