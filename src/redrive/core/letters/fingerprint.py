"""Fingerprint: which letters are the same problem, so that 40 000 failures read as three.

It is made of queue, error type, error code, the message without what differs from one failure to the next, and the
topmost frame of the team's own code. The same problem has the same fingerprint on every host and in every version
with the same prefix; a change of a rule here is a new prefix. Every pattern works on cut text and without nested
repetition, so the time is linear in a bounded length whatever the text.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from redrive.core.text import clean, cut

VERSION: Final = "v2"
MAX_NORMALISED_CHARS: Final = 2_000
"""Of a longer message only the start makes the group."""
MAX_TITLE_BYTES: Final = 200

_MONTH: Final = r"(?:jan|feb|mar|mär|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-z]{0,6}\.?"
_CLOCK: Final = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?"
_DATE: Final = (
    r"\b(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},? {1,2})?"
    rf"(?:\d{{1,2}}[./]\d{{1,2}}[./](?:19|20)\d\d|\d{{1,2}}\.? {_MONTH}|{_MONTH} {{1,2}}\d{{1,2}}\b)"
    rf"(?:,? {_CLOCK})?(?:,? (?:19|20)\d\d\b)?(?:,? {_CLOCK})?(?: ?(?:gmt|utc|[+-]\d\d:?\d\d)\b)?"
)
"""28.11.2026 14:05, Sat, 28 Nov 2026 14:05:00 +0000, Nov 28 14:05:00."""
_ENDINGS: Final = (
    "com|net|org|io|eu|de|at|ch|fr|uk|tr|cn|us|cloud|internal|intern|local|localdomain|lan|corp|svc|example|invalid"
)
"""How a name without any digit in it ends that is a host, and no module or file."""

_RULES: Final = tuple(
    (re.compile(pattern, re.ASCII | re.IGNORECASE), mark)
    for pattern, mark in (
        (r"\b[a-z][a-z0-9+.-]{1,20}://(?:\[[0-9a-f:.]{2,45}\])?[^\s'\"<>)\]}]{0,500}", "<url>"),
        (r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}", "<email>"),
        (r"(?<![\w/])(?:[a-z]:\\|~?/)[\w.~%+@-]{1,255}(?:[/\\][\w.~%+@-]{0,255}){0,40}", "<path>"),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
        (_DATE, "<time>"),
        (r"\b\d{4}-\d\d-\d\d(?:[t ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?z| ?[+-]\d\d:?\d\d)?)?", "<time>"),
        (r"\b\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\b", "<time>"),
        (r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?\b", "<ip>"),
        (r"(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", "<ip>"),
        (
            r"\b(?=[a-z.-]{0,253}\d)[a-z0-9][a-z0-9-]{0,62}(?:\.[a-z0-9][a-z0-9-]{0,62}){0,7}\.[a-z]{2,24}(?::\d{1,5})?\b",
            "<host>",
        ),
        (rf"\b[a-z][a-z0-9-]{{0,62}}(?:\.[a-z0-9-]{{1,63}}){{0,7}}\.(?:{_ENDINGS})\b(?!\.\w)(?::\d{{1,5}})?", "<host>"),
        (r"\b[a-z][a-z0-9-]{0,62}(?:\.[a-z0-9-]{1,63}){1,7}:\d{1,5}\b|\blocalhost\b(?::\d{1,5})?", "<host>"),
        (r"(?<!\w)'[^'\n]{1,500}'(?!\w)|\"[^\"\n]{1,500}\"|`[^`\n]{1,500}`", "<quoted>"),
        (r"\b0x[0-9a-f]{1,64}\b", "<hex>"),
        (r"\b(?=[0-9a-f]{0,64}\d)(?=[0-9a-f]{0,64}[a-f])[0-9a-f]{7,128}\b", "<hex>"),
        (r"\b(?=\w{0,64}\d)(?=\w{0,64}[a-z])[a-z0-9]{0,64}[_-][\w-]{0,128}\d[\w-]{0,128}\b", "<id>"),
        (r"\b[a-z]{1,2}-\d{3,64}\b", "<id>"),
        (r"(?<![a-z0-9])[-+]?\d(?:[\d_]|[.,'](?=\d)){0,60}(?:e[-+]?\d{1,4})?", "<n>"),
        (r"\s+", " "),
    )
)


def normalised(text: str) -> str:
    """The text with numbers, ids, hex, times, quoted values, paths and addresses replaced by what they are."""
    result = clean(text[:MAX_NORMALISED_CHARS])
    for pattern, mark in _RULES:
        result = pattern.sub(mark, result)
    return result.strip()


_UNIT: Final = r"(?:[nµmu]?s|sec|min|h|d|[kmgt]?i?b|%|€|\$|£|¥|eur|usd|gbp|chf|try|tl|cny|rmb|元)(?!\w)"
_ALIKE: Final = tuple(
    (re.compile(pattern, re.ASCII | re.IGNORECASE), mark)
    for pattern, mark in (
        (r"<(?:uuid|hex|id|n)>", "<n>"),
        (r"\b[a-z]{1,12}-<n>|\b[a-z]{2,20}\d{1,6}\b", "<n>"),
        (rf"[-+]?(?:[€$£¥] ?)?<n>(?: ?{_UNIT})?", "<n>"),
        (r"<n>(?:[/:.-]<n>)+", "<n>"),
        (r"\[?<(?:ip|host)>\]?(?::<n>)?", "<host>"),
    )
)
"""Which kind of id, address or unit a message names makes no other problem. A title keeps them apart, to be read."""


def _core(text: str) -> str:
    result = normalised(text)
    for pattern, mark in _ALIKE:
        result = pattern.sub(mark, result)
    return result


def fingerprint(
    queue: str, *, error_type: str | None, error_code: str | None, text: str, traceback: str | None = None
) -> str:
    """The group of a failure: "v2-" and 16 hex digits, always the same for the same problem."""
    parts = (queue, error_type or "", error_code or "", _core(text), top_own_frame(traceback) or "")
    framed = "\x00".join(f"{len(part)}:{part}" for part in parts)
    return f"{VERSION}-{hashlib.sha256(framed.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def group_title(*, error_type: str | None, error_code: str | None, text: str, traceback: str | None = None) -> str:
    """The group in one line for a person: type or code, normalised message, and where."""
    head = error_type or error_code or "Failure"
    frame = top_own_frame(traceback)
    return cut(f"{head}: {normalised(text)}" + (f" ({frame})" if frame else ""), MAX_TITLE_BYTES)


_FRAME: Final = re.compile(r'^\s{0,40}File "([^"\n]{1,500})", line \d{1,9}, in ([^\n]{1,200})$', re.MULTILINE)
_NOT_OWN: Final = re.compile(
    r"^<|[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python\d|[/\\]Python\d+[/\\]Lib[/\\]|[/\\]redrive[/\\]runtime[/\\]"
)


_SEPARATOR: Final = re.compile(r"[/\\]")


def top_own_frame(traceback: str | None) -> str | None:
    """The deepest frame of the team's own code as "dir/file.py:function"; None where the traceback shows none.

    Line numbers and the path above the last directory are left out: they differ between hosts and releases.
    """
    frames = _FRAME.findall(traceback) if traceback else []
    own = [(path, function) for path, function in frames if not _NOT_OWN.search(path)]
    if not own:
        return None
    path, function = own[-1]
    return "/".join(_SEPARATOR.split(path)[-2:]) + f":{function.strip()}"
