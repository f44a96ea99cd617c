"""The statements of the hot path: publish, take, commit.

They are plain constants so that a benchmark can run the same statements with the same fsyncs and nothing around
them: that is the ceiling redrive is measured against. Rows come from `values.insert_rows`; `json_each(?)` gets
whole numbers only.
"""

from __future__ import annotations

from typing import Final

FIND_QUEUE: Final = "SELECT id, declared_at FROM redrive_queue WHERE name = ?"
ADD_QUEUE: Final = (
    "INSERT INTO redrive_queue (name, declared_at) VALUES (?, ?) "
    "ON CONFLICT (name) DO UPDATE SET declared_at = COALESCE(declared_at, excluded.declared_at) RETURNING id"
)

# ---------------------------------------------------------------------------------------------------- publish

INSERT_MESSAGES: Final = (
    "INSERT INTO redrive_message (queue_id, message_id, key, tenant, priority, published_at, expires_at, content_type, "
    "headers, properties, body, turn_group)"
)
READY_FROM_RANGE: Final = (
    "INSERT INTO redrive_ready (queue_id, priority, due_at, seq, starts, token, entries) "
    "SELECT queue_id, COALESCE(priority, 0), ?, seq, 0, 0, 0 FROM redrive_message WHERE seq BETWEEN ? AND ?"
)
"""(due_at, first seq, last seq): the messages just inserted become ready."""
INSERT_READY: Final = "INSERT INTO redrive_ready (queue_id, priority, due_at, seq, starts, token, entries)"
INSERT_SCHEDULED: Final = "INSERT INTO redrive_scheduled (queue_id, priority, due_at, seq, starts, token, entries)"
INSERT_REWRITTEN: Final = "INSERT OR REPLACE INTO redrive_rewritten (seq, body)"

# ---------------------------------------------------------------------------------------------------- take

NEXT_LEASE_END: Final = "SELECT min(lease_until) FROM redrive_leased WHERE queue_id = ?"
NEXT_DUE: Final = "SELECT min(due_at) FROM redrive_scheduled WHERE queue_id = ?"
HAS_READY: Final = "SELECT 1 FROM redrive_ready WHERE queue_id = ? LIMIT 1"

_TO_READY: Final = (
    "INSERT INTO redrive_ready (queue_id, priority, due_at, seq, starts, token, entries) SELECT queue_id, "
)
SELECT_ENDED: Final = (
    "SELECT priority, due_at, seq FROM redrive_leased WHERE queue_id = ? AND lease_until <= ? "
    "ORDER BY priority, due_at, seq LIMIT ?"
)
SELECT_READY_PLACES: Final = (
    "SELECT priority, due_at, seq FROM redrive_ready WHERE queue_id = ? ORDER BY priority, due_at, seq LIMIT ?"
)
_ENDED: Final = " FROM redrive_leased WHERE seq IN (SELECT value FROM json_each(?))"
RESCUE: Final = (
    (
        "INSERT INTO redrive_attempt (seq, position, entry) SELECT seq, entries, json_object('attempt', attempt, "
        f"'outcome', 'interrupted', 'at', started_at, 'worker', worker){_ENDED}"
    ),
    f"{_TO_READY}priority, due_at, seq, starts, token, entries + 1{_ENDED}",
    f"DELETE{_ENDED}",
)
"""([seq, …]) each: leases that ended count a lost start, told in the history, and are ready again."""
PROMOTE: Final = (
    (
        f"{_TO_READY}priority, due_at, seq, starts, token, entries "
        "FROM redrive_scheduled WHERE queue_id = ? AND due_at <= ?"
    ),
    "DELETE FROM redrive_scheduled WHERE queue_id = ? AND due_at <= ?",
)
"""(queue_id, now) each: what is due becomes ready."""

_TAKE_COLUMNS: Final = (
    "SELECT r.seq, r.priority, r.due_at, r.starts, r.token, r.entries, m.message_id, m.key, m.tenant, m.priority, "
    "m.published_at, m.expires_at, m.content_type, m.headers, m.properties, m.body, w.body"
)
_TAKE_FROM: Final = (
    " FROM redrive_ready r CROSS JOIN redrive_message m ON m.seq = r.seq LEFT JOIN redrive_rewritten w ON w.seq = r.seq"
)
_TAKE_ORDER: Final = " WHERE r.queue_id = ? ORDER BY r.priority, r.due_at, r.seq LIMIT ?"
_CLAIM_COLUMNS: Final = (
    ", c.id, c.state, c.attempts, c.cycle, c.token, c.owner, c.lease_until, c.expires_at, c.digest, c.updated_at"
)
_TAKE_CLAIMS: Final = " LEFT JOIN redrive_claim c ON c.queue_id = r.queue_id AND c.key = m.key"
SELECT_READY: Final = f"{_TAKE_COLUMNS}{_TAKE_FROM}{_TAKE_ORDER}"
SELECT_READY_AND_CLAIMS: Final = f"{_TAKE_COLUMNS}{_CLAIM_COLUMNS}{_TAKE_FROM}{_TAKE_CLAIMS}{_TAKE_ORDER}"
"""(queue_id, limit): the next messages in order, with their bodies and what is known of their keys."""
_TURN_READY: Final = (
    " CROSS JOIN redrive_ready r ON r.queue_id = ? AND r.priority = p.priority AND r.due_at = p.due_at "
    "AND r.seq = p.seq CROSS JOIN redrive_message m ON m.seq = r.seq LEFT JOIN redrive_rewritten w ON w.seq = r.seq"
)
_TURN_FROM: Final = f" FROM json_each(?) j CROSS JOIN redrive_turn_ready p ON p.seq = j.value{_TURN_READY}"
_ONE_TURN_FROM: Final = f" FROM (SELECT * FROM redrive_turn_ready WHERE seq = ?) p{_TURN_READY}"  # noqa: S608 - constants
SELECT_TURNS: Final = f"{_TAKE_COLUMNS}{_TURN_FROM}"
SELECT_TURNS_AND_CLAIMS: Final = f"{_TAKE_COLUMNS}{_CLAIM_COLUMNS}{_TURN_FROM}{_TAKE_CLAIMS}"
"""([seq, …], queue_id): these messages of a fair queue, in this order, in the same columns."""
SELECT_ONE_TURN: Final = f"{_TAKE_COLUMNS}{_ONE_TURN_FROM}"
SELECT_ONE_TURN_AND_CLAIMS: Final = f"{_TAKE_COLUMNS}{_CLAIM_COLUMNS}{_ONE_TURN_FROM}{_TAKE_CLAIMS}"
"""(seq, queue_id): one of them."""
INSERT_LEASED: Final = (
    "INSERT INTO redrive_leased (queue_id, started_at, lease_until, worker, seq, priority, due_at, starts, token, "
    "entries, attempt, claim_id)"
)
"""The first four are the same for the whole batch."""
DELETE_READY_UP_TO: Final = "DELETE FROM redrive_ready WHERE queue_id = ? AND (priority, due_at, seq) <= (?, ?, ?)"
NEW_CLAIMS: Final = (
    "INSERT INTO redrive_claim (queue_id, key, state, attempts, cycle, token, owner, lease_until, updated_at) "
    "SELECT m.queue_id, m.key, 1, 1, 0, 1, ?, ?, ? FROM json_each(?) j CROSS JOIN redrive_message m ON m.seq = j.value"
)
"""(owner, lease_until, now, [seq, …]): first claims of keys nobody knows; ids come out in that order."""
TAKE_CLAIMS: Final = (
    "UPDATE redrive_claim SET state = 1, attempts = json_extract(j.value, '$[1]'), cycle = json_extract(j.value, "
    "'$[2]'), token = json_extract(j.value, '$[3]'), digest = CASE WHEN expires_at <= ? THEN NULL ELSE digest END, "
    "owner = ?, lease_until = ?, expires_at = NULL, updated_at = ? FROM json_each(?) j "
    "WHERE redrive_claim.id = json_extract(j.value, '$[0]')"
)
"""(now, owner, lease_until, now, [[id, attempts, cycle, token], …]); what an expired record knew is forgotten."""
SELECT_ATTEMPTS: Final = (
    "SELECT a.seq, a.entry FROM json_each(?) j CROSS JOIN redrive_attempt a ON a.seq = j.value "
    "ORDER BY a.seq, a.position"
)

# ---------------------------------------------------------------------------------------------------- commit

SELECT_LEASED: Final = (
    "SELECT l.seq, l.token, l.queue_id, l.priority, l.starts, l.entries, l.claim_id, c.token, c.attempts "
    "FROM json_each(?) j CROSS JOIN redrive_leased l ON l.seq = j.value LEFT JOIN redrive_claim c ON c.id = l.claim_id"
)
"""([seq, …]): what the fences are checked against."""
DELETE_LEASED: Final = "DELETE FROM redrive_leased WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_MESSAGES: Final = "DELETE FROM redrive_message WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_REWRITTEN: Final = "DELETE FROM redrive_rewritten WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_ATTEMPTS: Final = "DELETE FROM redrive_attempt WHERE seq IN (SELECT value FROM json_each(?))"
INSERT_ATTEMPTS: Final = "INSERT INTO redrive_attempt (seq, position, entry)"
END_CLAIMS: Final = (
    "UPDATE redrive_claim SET state = ?, owner = NULL, lease_until = NULL, lost_by = NULL, lost_at = NULL, "
    "expires_at = json_extract(j.value, '$[1]'), updated_at = ? "
    "FROM json_each(?) j WHERE redrive_claim.id = json_extract(j.value, '$[0]')"
)
"""(state, now, [[id, expires_at], …])."""
RELEASE_CLAIMS: Final = (
    "UPDATE redrive_claim SET state = CASE WHEN attempts > 1 THEN 3 ELSE 0 END, attempts = attempts - 1, owner = NULL, "
    "lease_until = NULL, expires_at = json_extract(j.value, '$[1]'), updated_at = ? FROM json_each(?) j "
    "WHERE redrive_claim.id = json_extract(j.value, '$[0]')"
)
"""(now, [[id, expires_at], …]): the attempt is given back; with attempts left over it is failed, else received."""
