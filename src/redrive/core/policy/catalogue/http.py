"""HTTP: what a status means for a retry, and what Retry-After says."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from redrive.core.policy.failure import Entry, permanent, transient
from redrive.core.units import MAX_DELAY_MS, Millis, UnixMs

REQUEUE_STATUS: Final = 425
"""Too Early (RFC 8470 §5.2): the message was handed over before its time; that costs no attempt."""

_TRANSIENT: Final = {
    401: "RFC 9110 §15.5.2 Unauthorized: about the caller's credentials, which are the same for every message",
    403: "RFC 9110 §15.5.4 Forbidden: about the caller's rights; a change of them by a person helps",
    407: "RFC 9110 §15.5.8 Proxy Authentication Required: about the caller's credentials",
    408: "RFC 9110 §15.5.9 Request Timeout",
    409: "RFC 9110 §15.5.10 Conflict: a lock or version that passes",
    421: "RFC 9110 §15.5.20 Misdirected Request",
    423: "RFC 4918 §11.3 Locked",
    424: "RFC 4918 §11.4 Failed Dependency",
    425: "RFC 8470 §5.2 Too Early",
    429: "RFC 6585 §4 Too Many Requests",
    499: "nginx: the client closed the request",
}
"""What may pass by itself, or is about the caller and not about this message: giving up on every message at once
because a token has run out would only move the whole queue into the dead letters. The breaker holds it instead.
"""

_PERMANENT_5XX: Final = {
    501: "RFC 9110 §15.6.2 Not Implemented",
    505: "RFC 9110 §15.6.6 HTTP Version Not Supported",
    508: "RFC 5842 §7.2 Loop Detected",
    510: "RFC 2774 §7 Not Extended",
}
_CLIENT_ERROR: Final = "RFC 9110 §15.5: the request itself is wrong; repeating it does not mend it"
_SERVER_ERROR: Final = "RFC 9110 §15.6: the server failed at a request that may be right"
_NO_ANSWER: Final = "RFC 9110 §15.2, §15.4: not a final answer to this request"


def entry_of_status(status: int) -> Entry | None:
    """What this status says of the attempt: None for success (2xx), else a row with the code HTTP_<status>."""
    code = f"HTTP_{status}"
    match status // 100:
        case 2:
            return None
        case 4 if status not in _TRANSIENT:
            return permanent(code, _CLIENT_ERROR)
        case 4:
            return transient(code, _TRANSIENT[status])
        case 5 if status in _PERMANENT_5XX:
            return permanent(code, _PERMANENT_5XX[status])
        case 5:
            return transient(code, _SERVER_ERROR)
        case _:
            return transient(code, _NO_ANSWER)


_SECONDS: Final = re.compile(r"\d+", re.ASCII)
_MAX_SECONDS_DIGITS: Final = 12
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK: Final = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
_DATES: Final = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        rf"[a-z]{{3}}, (?P<day>\d\d) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_CLOCK} GMT",  # IMF-fixdate
        rf"[a-z]{{6,9}}, (?P<day>\d\d)-(?P<month>[a-z]{{3}})-(?P<year>\d\d) {_CLOCK} GMT",  # RFC 850
        rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) (?P<day>[ \d]\d) {_CLOCK} (?P<year>\d{{4}})",  # asctime
    )
)
"""The three forms of RFC 9110 §5.6.7. The names of the days are not checked: servers get them wrong."""


def parse_retry_after(value: str | bytes | float | None, now: UnixMs) -> Millis | None:
    """Retry-After (RFC 9110 §10.2.3) as a delay: seconds, or a date seen from `now`. None where it says nothing.

    A date in the past is 0. Nothing is longer than ten years.
    """
    if value is None:
        return None
    # Cut before anything else: nothing that long is a date, and digits beyond it make it ten years already.
    text = (value.decode("latin-1") if isinstance(value, bytes) else str(value))[:_MAX_TEXT].strip()
    if _SECONDS.fullmatch(text):
        return MAX_DELAY_MS if len(text.lstrip("0")) > _MAX_SECONDS_DIGITS else min(int(text) * 1_000, MAX_DELAY_MS)
    for form in _DATES:
        if found := form.fullmatch(text):
            at = _instant(found, now)
            return None if at is None else min(max(at - now, 0), MAX_DELAY_MS)
    return None


_MAX_TEXT: Final = 64


def _instant(found: re.Match[str], now: UnixMs) -> UnixMs | None:
    year = int(found["year"])
    if year < 100:  # noqa: PLR2004 - two digits: a date over 50 years ahead lies in the past (RFC 9110 §5.6.7)
        this_year = datetime.fromtimestamp(now / 1_000, UTC).year
        year += this_year - this_year % 100
        year -= 100 if year > this_year + 50 else 0
    try:
        month = _MONTHS.index(found["month"].lower()) + 1
        clock = (int(found["h"]), int(found["m"]), min(int(found["s"]), 59))
        return round(datetime(year, month, int(found["day"]), *clock, tzinfo=UTC).timestamp()) * 1_000
    except ValueError:
        return None
