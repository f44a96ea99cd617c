"""Why a letter is not sent: a code for machines, a text for a person, and the two rules that look beyond the letter.

The item keeps the text only. `code_of` finds the code by how the text begins, so that jobs of an older version are
counted as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from redrive.core.idempotency import ClaimRecord
from redrive.core.units import Millis, UnixMs


class RefusalCode(StrEnum):
    """Why a letter is not sent."""

    GONE = "gone"
    NO_QUEUE = "no-queue"
    IN_PROGRESS = "in-progress"
    NOT_OPEN = "not-open"
    RETENTION_ENDED = "retention-ended"
    REDRIVEN_OFTEN = "redriven-often"
    DEDUP_EXPIRED = "dedup-expired"
    """Its consumer has forgotten the key meanwhile, so that a second effect could not be told from the first."""
    OUT_OF_ORDER = "out-of-order"
    """An earlier letter of its key is open, and not part of the job."""
    EDIT = "edit"
    BROKER = "broker"
    OTHER = "other"


WAIVABLE: Final = (RefusalCode.DEDUP_EXPIRED, RefusalCode.OUT_OF_ORDER)
"""What a person may say to send all the same, by name (`JobOptions.even_if`)."""

DEFAULT_KEY_RETENTION_MS: Final[Millis] = 7 * 86_400_000
"""How long a consumer that is not known here is taken to remember a key: the default of `idempotency_ttl`."""

_HEADS: Final = (
    ("it no longer exists", RefusalCode.GONE),
    ("it does not say which queue", RefusalCode.NO_QUEUE),
    ("it is in progress in job", RefusalCode.IN_PROGRESS),
    ("it was redriven", RefusalCode.REDRIVEN_OFTEN),
    ("its retention has ended", RefusalCode.RETENTION_ENDED),
    ("its key is forgotten", RefusalCode.DEDUP_EXPIRED),
    ("an earlier letter of its key", RefusalCode.OUT_OF_ORDER),
    ("the edit does not fit", RefusalCode.EDIT),
    ("the broker refused it", RefusalCode.BROKER),
    ("it is ", RefusalCode.NOT_OPEN),
)
"""Looked at in this order."""


def code_of(why: str) -> RefusalCode:
    """The code of this text."""
    return next((code for head, code in _HEADS if why.startswith(head)), RefusalCode.OTHER)


def by_code(whys: Iterable[str]) -> dict[str, int]:
    """How many letters for each code, the most first."""
    counted = Counter(str(code_of(why)) for why in whys)
    return dict(sorted(counted.items(), key=lambda entry: (-entry[1], entry[0])))


def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Two such counts together."""
    total = Counter(one)
    total.update(other)
    return dict(sorted(total.items(), key=lambda entry: (-entry[1], entry[0])))


def forgotten(
    queue: str, record: ClaimRecord | None, *, died_at: UnixMs, retention_ms: Millis, now: UnixMs
) -> str | None:
    """Why a letter may not go to this queue, whose consumer remembers a key so long; None where it may.

    What was done since the letter died is remembered until `died_at + retention_ms` at least. After that only a record
    that is still there tells a second effect from the first.
    """
    if now - died_at <= retention_ms or (record is not None and not _is_expired(record, now)):
        return None
    return (
        f'its key is forgotten: "{queue}" remembers one for {_span(retention_ms)}, it died {_span(now - died_at)} ago, '
        "and whether its work was done meanwhile cannot be told. If it may be done twice: --even-if dedup-expired"
    )


def overtakes(earlier: str) -> str:
    """Why a letter may not be sent while this one is open."""
    return (
        f"an earlier letter of its key is open: {earlier}. Send or close that one first, or let this one overtake it: "
        "--even-if out-of-order"
    )


def _is_expired(record: ClaimRecord, now: UnixMs) -> bool:
    return record.expires_at is not None and record.expires_at <= now


def _span(duration_ms: Millis) -> str:
    for name, unit in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if duration_ms >= 2 * unit or (duration_ms >= unit and duration_ms % unit == 0):
            return f"{duration_ms // unit} {name}"
    return f"{duration_ms // 1_000} s"
