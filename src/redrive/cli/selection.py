"""From filter options to a `Selection`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redrive.cli.options import State, parse_time, refuse_unless
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection

LETTER_PREFIX: Final = "dl_"


def make_selection(
    targets: Sequence[str] | None = None,
    *,
    queue: str | None = None,
    state: Sequence[State] | None = None,
    reason: str | None = None,
    error_code: str | None = None,
    error_type: str | None = None,
    tenant: str | None = None,
    key: str | None = None,
    message_type: str | None = None,
    group: str | None = None,
    since: str | None = None,
    until: str | None = None,
    text: str | None = None,
    ids: Sequence[str] | None = None,
) -> Selection:
    """The letters that all given options describe. Raises `ConfigurationError` for a time without an offset or two
    queues at once.
    """
    queues = [target for target in targets or () if not target.startswith(LETTER_PREFIX)]
    named = [target for target in targets or () if target.startswith(LETTER_PREFIX)]
    queues += [] if queue is None else [queue]
    refuse_unless(len(set(queues)) <= 1, f"One queue at a time: {', '.join(dict.fromkeys(queues))} are several.")
    return Selection(
        ids=tuple(dict.fromkeys((*named, *(ids or ())))),
        queue=queues[0] if queues else None,
        states=frozenset(ReviewState(entry.value) for entry in state or ()),
        reason_code=reason,
        error_type=error_type,
        error_code=error_code,
        fingerprint=group,
        tenant=tenant,
        key=key,
        message_type=message_type,
        since=parse_time(since, "--since"),
        until=parse_time(until, "--until"),
        text=text,
    )


def refuse_everything(selection: Selection, *, is_all: bool, verb: str) -> None:
    """A verb that changes letters must be told which: no filter at all needs `--all`."""
    refuse_unless(
        is_all or selection != Selection(),
        f"Which letters to {verb}? Nothing was changed.",
        f"Name a queue, ids or a filter, or say --all. Look first: redrive dlq {verb} --all --dry-run",
    )
