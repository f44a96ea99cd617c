-- Who wrote what over the admin API, and what was answered to each Idempotency-Key (core/audit.py). Additive: a redrive
-- that knows only 001 to 006 keeps neither. id sorts by time; status is NULL while the result is not known.

CREATE TABLE redrive_write (
    id TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    role TEXT NOT NULL,
    operation TEXT NOT NULL,
    target TEXT NOT NULL,
    address TEXT NOT NULL,
    status INTEGER,
    result TEXT NOT NULL
) WITHOUT ROWID;

-- headers: a JSON object.
CREATE TABLE redrive_answer (
    key TEXT PRIMARY KEY,
    status INTEGER NOT NULL,
    body BLOB NOT NULL,
    headers TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX redrive_answer_expiry ON redrive_answer (expires_at);
