"""Letters: store, read one, review, prune. Lists and counts are in search.py; triggers count (sql/002_tally.sql).

Every function runs inside the caller's transaction. A list never touches redrive_letter_content, where the bodies are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from redrive.core.letters.letter import Letter
from redrive.core.letters.review import moves
from redrive.core.letters.rows import CONTENT_COLUMNS, REVIEW_NUMBER, REVIEW_STATES, SUMMARY_COLUMNS, SUMMARY_WIDTH
from redrive.core.letters.selection import Selection
from redrive.core.ports import AuditEntry, ReviewChange
from redrive.core.text import clean
from redrive.core.units import UnixMs
from redrive.postgres import groups
from redrive.postgres.database import Tx
from redrive.postgres.rows import CONTENT_TYPES, SUMMARY_TYPES, content_row, letter_from, summary_row
from redrive.postgres.search import where
from redrive.postgres.values import columns_of, text_in, text_out, unnest

FOLD_EVERY: Final = 512
"""So many letters stored, and the rows that count them are added up."""
MAX_FOLDED: Final = 100_000
FOLD_LOCK: Final = 7_233_746_702
_CONTENT_WIDTH: Final = len(CONTENT_TYPES.split())

_GIVEN: Final = (
    f"given AS (SELECT * FROM {unnest(f'{SUMMARY_TYPES} {CONTENT_TYPES}')} WITH ORDINALITY "  # noqa: S608 - constants
    f"AS g ({SUMMARY_COLUMNS}, {CONTENT_COLUMNS}, header_texts, place)"
)
_KEEP: Final = (
    f"fresh AS (INSERT INTO @letter ({SUMMARY_COLUMNS}) SELECT {SUMMARY_COLUMNS} FROM given ORDER BY place "  # noqa: S608 - constants
    "ON CONFLICT (id) DO NOTHING RETURNING seq, id), "
    f"content AS (INSERT INTO @letter_content (seq, {CONTENT_COLUMNS}, header_texts) "
    f"SELECT fresh.seq, {CONTENT_COLUMNS}, header_texts FROM fresh JOIN given USING (id)) "
)
_PUT: Final = f"WITH {_GIVEN}), {_KEEP} SELECT id, seq FROM fresh"  # noqa: S608 - constants
_PUT_QUICKLY: Final = (
    "WITH put_aside AS (SELECT 1 FROM @group WHERE fingerprint = ANY (%s) AND state IN (2, 3) LIMIT 1), "  # noqa: S608
    f"{_GIVEN} WHERE NOT EXISTS (SELECT 1 FROM put_aside)), {_KEEP} "
    "SELECT EXISTS (SELECT 1 FROM put_aside), coalesce(max(seq), 0) FROM fresh"
)


def put_quickly(tx: Tx, batch: Sequence[Letter]) -> int | None:
    """Store letters, in one statement that is its own transaction; one whose id is there already stays as it is. The
    highest new row; 0 for none. None where nothing was stored, because one of their groups is resolved or ignored, and
    may have to be reopened in the same commit: `put` does that.

    A group that somebody resolves at this very moment counts as resolved after these letters.

    Killed at any point: all of the batch is there, or nothing.
    """
    letters = _once(batch)
    fingerprints = list({text_in(letter.fingerprint) for letter in letters})
    row = tx.execute(_PUT_QUICKLY, [fingerprints, *_columns(letters)]).fetchone()
    assert row is not None
    return None if row[0] else int(row[1])


def put(tx: Tx, batch: Sequence[Letter]) -> int:
    """As `put_quickly`, and groups that these letters reopen are reopened. Inside a transaction.

    Killed at any point: all of the batch is there, or nothing.
    """
    letters = _once(batch)
    fresh: dict[str, int] = dict(tx.execute(_PUT, _columns(letters)).fetchall())
    groups.reopen(tx, [letter for letter in letters if text_in(letter.id) in fresh])
    return max(fresh.values(), default=0)


def _once(batch: Sequence[Letter]) -> list[Letter]:
    """Of letters with one id, the first."""
    return list(reversed({letter.id: letter for letter in reversed(batch)}.values()))


def _columns(letters: Sequence[Letter]) -> list[list[Any]]:
    return [
        *columns_of([summary_row(letter) for letter in letters], SUMMARY_WIDTH),
        *columns_of([content_row(letter) for letter in letters], _CONTENT_WIDTH),
    ]


def fold(tx: Tx) -> None:
    """Add up what redrive_tally_new says in redrive_tally, unless another process is at it."""
    is_mine = tx.execute("SELECT pg_try_advisory_xact_lock(%s)", (FOLD_LOCK,)).fetchone()
    if is_mine is None or not is_mine[0]:
        return
    names = "queue, dead_letter_queue, state, what, name"
    told = "length(queue), queue, length(dead_letter_queue), dead_letter_queue, state, what, name"
    tx.execute(
        "WITH gone AS (DELETE FROM @tally_new WHERE ctid = ANY (ARRAY(SELECT ctid FROM @tally_new LIMIT %s)) "  # noqa: S608 - constants
        f"RETURNING {names}, count) INSERT INTO @tally AS t (id, {names}, count) "
        f"SELECT sha256(convert_to(concat_ws(' ', {told}), 'UTF8')), {names}, sum(count) FROM gone "
        f"GROUP BY {names} HAVING sum(count) <> 0 "
        "ON CONFLICT (id) DO UPDATE SET count = t.count + excluded.count",
        (MAX_FOLDED,),
    )
    tx.execute("DELETE FROM @tally WHERE count = 0")


def get(tx: Tx, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None:
    """The whole letter and what was done to it, oldest first."""
    row = tx.execute(
        f"SELECT l.seq, {SUMMARY_COLUMNS}, {CONTENT_COLUMNS} FROM @letter l "  # noqa: S608 - constants
        "JOIN @letter_content c ON c.seq = l.seq WHERE l.id = %s",
        (text_in(letter_id),),
    ).fetchone()
    if row is None:
        return None
    trail = tx.execute("SELECT at, actor, action, note FROM @audit WHERE letter_seq = %s ORDER BY id", (row[0],))
    entries = tuple(
        AuditEntry(letter_id=letter_id, at=at, actor=actor, action=action, note=note)
        for at, actor, action, note in trail
    )
    return letter_from(row[1:]), entries


_EARLIER: Final = (
    "WITH asked AS MATERIALIZED (SELECT seq, id, queue, key, dead_lettered_at FROM @letter "
    "WHERE id = ANY (%s) AND key IS NOT NULL), scope AS MATERIALIZED (SELECT DISTINCT queue, key FROM asked) "
    "SELECT a.id, e.id FROM scope s CROSS JOIN LATERAL (SELECT f.seq, f.id, f.dead_lettered_at FROM @letter f "
    "WHERE left(f.key, 100) = left(s.key, 100) AND f.key IS NOT NULL AND f.key = s.key AND f.queue = s.queue "
    "AND f.state <= 1 AND f.outstanding_job IS DISTINCT FROM %s ORDER BY f.dead_lettered_at, f.seq LIMIT 1) e "
    "JOIN asked a ON a.queue = s.queue AND a.key = s.key "
    "AND (e.dead_lettered_at, e.seq) < (a.dead_lettered_at, a.seq)"
)


def earlier(tx: Tx, letter_ids: Sequence[str], *, job_id: str | None) -> dict[str, str]:
    """See `LetterStore.earlier`. One statement, with one look for each key, however many letters have it."""
    rows = tx.execute(_EARLIER, ([text_in(each) for each in letter_ids], text_in(job_id or "")))
    return {text_out(letter_id): text_out(first) for letter_id, first in rows}


def review(tx: Tx, batch: Sequence[ReviewChange]) -> list[str | None]:
    """Move letters as the review table allows, each step audited; else why not."""
    answers: list[str | None] = []
    for part in _rounds(batch):
        answers += _review_round(tx, part)
    return answers


def _rounds(batch: Sequence[ReviewChange]) -> Iterable[list[ReviewChange]]:
    """The batch in pieces that name no letter twice: each piece is one step for all of its letters."""
    part: list[ReviewChange] = []
    seen: set[str] = set()
    for change in batch:
        if change.letter_id in seen:
            yield part
            part, seen = [], set()
        part.append(change)
        seen.add(change.letter_id)
    if part:
        yield part


def _review_round(tx: Tx, part: Sequence[ReviewChange]) -> list[str | None]:
    rows = tx.execute(
        "SELECT id, seq, state FROM @letter WHERE id = ANY (%s) ORDER BY seq FOR UPDATE",
        ([text_in(change.letter_id) for change in part],),
    )
    there = {row[0]: (row[1], row[2]) for row in rows}
    answers: list[str | None] = []
    moved: list[tuple[int, int]] = []
    trail: list[tuple[Any, ...]] = []
    for change in part:
        found = there.get(text_in(change.letter_id))
        if found is None:
            answers.append(f'no dead letter has the id "{change.letter_id}"')
            continue
        steps = moves(REVIEW_STATES[found[1]], change.to)
        if isinstance(steps, str):
            answers.append(steps)
            continue
        answers.append(None)
        moved.append((found[0], REVIEW_NUMBER[steps[-1]]))
        trail += [(found[0], change.at, clean(change.actor), str(step), clean(change.note)) for step in steps]
    if moved:
        tx.execute(
            f"UPDATE @letter l SET state = g.state FROM {unnest('bigint smallint')} AS g (seq, state) "  # noqa: S608 - constants
            "WHERE l.seq = g.seq",
            columns_of(moved, 2),
        )
        tx.execute(
            "INSERT INTO @audit (letter_seq, at, actor, action, note) SELECT g.seq, g.at, g.actor, g.action, g.note "  # noqa: S608 - constants
            f"FROM {unnest('bigint bigint text text text')} WITH ORDINALITY "
            "AS g (seq, at, actor, action, note, place) ORDER BY place",
            columns_of(trail, 5),
        )
    return answers


def prune(tx: Tx, *, now: UnixMs, limit: int, selection: Selection | None) -> int:
    """Delete at most `limit` expired letters that are replayed or closed, or the selected ones that no job holds, with
    their audit trail, oldest first.
    """
    if selection is None:
        condition, values, order = "state >= 2 AND expires_at IS NOT NULL AND expires_at <= %s", [now], "expires_at"
    else:
        found = where(tx, selection)
        condition, values, order = f"({found.text}) AND outstanding_job IS NULL", found.values, found.order
    rows = tx.execute(
        f"SELECT seq FROM @letter l WHERE {condition} ORDER BY {order} LIMIT %s FOR UPDATE SKIP LOCKED",  # noqa: S608 - constants
        [*values, limit],
    ).fetchall()
    seqs = sorted(row[0] for row in rows)
    if seqs:
        tx.execute("DELETE FROM @letter WHERE seq = ANY (%s)", (seqs,))
        tx.execute("DELETE FROM @letter_content WHERE seq = ANY (%s)", (seqs,))
        tx.execute("DELETE FROM @audit WHERE letter_seq = ANY (%s)", (seqs,))
    fold(tx)
    return len(seqs)
