-- The tables of one redrive file. Read this first; queue.py, claims.py, letters.py and jobs.py only move rows between them.
--
-- A message is one immutable row in redrive_message and exactly one small row that says where it stands:
--
--     redrive_ready ──take──> redrive_leased ──ack, dead letter──> (both rows deleted)
--         ^    ^                    │  │
--         │    └──── lease over ────┘  └──retry, requeue──> redrive_scheduled (or redrive_ready where due already)
--         └───────────────────── due ────────────────────────────┘
--
-- so that taking and retrying never rewrites a body, and the tables that change all the time stay a few pages big.
-- Every name starts with redrive_: the file may be the application's own (delivery.transaction()). For the same
-- reason the schema version lives in redrive_meta and not in PRAGMA user_version, which is the application's.

CREATE TABLE redrive_meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- Every queue name that messages or claims refer to. declared_at is NULL where only a claim or a letter knows the
-- name: such a queue does not exist, and a redrive to it is refused.
CREATE TABLE redrive_queue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    declared_at INTEGER
);

-- AUTOINCREMENT: a lease is (seq, token), so the seq of a deleted message must never come back.
-- body is as first published; what a retry made of it lies in redrive_rewritten.
CREATE TABLE redrive_message (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    key TEXT,
    tenant TEXT,
    priority INTEGER,
    published_at INTEGER NOT NULL,
    expires_at INTEGER,
    content_type TEXT,
    headers TEXT,
    properties TEXT,
    body BLOB NOT NULL
);

CREATE TABLE redrive_rewritten (
    seq INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

-- The primary key is the order of hand-over: taking the first n is one range read and one range delete.
-- starts: starts not handed back. token: raised by every take. entries: rows in redrive_attempt.
CREATE TABLE redrive_ready (
    queue_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    starts INTEGER NOT NULL,
    token INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    PRIMARY KEY (queue_id, priority, due_at, seq)
) WITHOUT ROWID;

CREATE TABLE redrive_scheduled (
    queue_id INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    starts INTEGER NOT NULL,
    token INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    PRIMARY KEY (queue_id, due_at, seq)
) WITHOUT ROWID;

-- due_at is kept, so that a message whose lease ends goes back to its old place in line.
-- attempt: the number this start has in the history, should it never end.
CREATE TABLE redrive_leased (
    seq INTEGER PRIMARY KEY,
    queue_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    starts INTEGER NOT NULL,
    token INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    claim_id INTEGER,
    started_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    worker TEXT NOT NULL
);
CREATE INDEX redrive_leased_until ON redrive_leased (queue_id, lease_until);

CREATE TABLE redrive_attempt (
    seq INTEGER NOT NULL,
    position INTEGER NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (seq, position)
) WITHOUT ROWID;

-- state: 0 received, 1 processing, 2 processed, 3 failed, 4 dead_lettered (core/idempotency.py).
CREATE TABLE redrive_claim (
    id INTEGER PRIMARY KEY,
    queue_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    state INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    cycle INTEGER NOT NULL,
    token INTEGER NOT NULL,
    owner TEXT,
    lease_until INTEGER,
    expires_at INTEGER,
    digest TEXT,
    updated_at INTEGER NOT NULL,
    UNIQUE (queue_id, key)
);
CREATE INDEX redrive_claim_expiry ON redrive_claim (expires_at) WHERE expires_at IS NOT NULL;

-- What a list shows; the rest of a letter is in redrive_letter_content, which a list never reads.
-- state: 0 pending, 1 reviewed, 2 replayed, 3 closed (core/letters/letter.py); open is state <= 1.
CREATE TABLE redrive_letter (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    queue TEXT NOT NULL,
    dead_letter_queue TEXT NOT NULL,
    message_id TEXT NOT NULL,
    key TEXT,
    tenant TEXT,
    message_type TEXT,
    reason_code TEXT NOT NULL,
    reason_text TEXT NOT NULL,
    error_type TEXT,
    error_code TEXT,
    attempt_count INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    group_title TEXT NOT NULL,
    state INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    dead_lettered_at INTEGER NOT NULL,
    expires_at INTEGER,
    redrive_count INTEGER NOT NULL,
    previous TEXT,
    outstanding_job TEXT,
    body_bytes INTEGER NOT NULL
);
CREATE INDEX redrive_letter_died ON redrive_letter (dead_lettered_at, seq, state);
CREATE INDEX redrive_letter_open ON redrive_letter (dead_letter_queue, dead_lettered_at, seq) WHERE state <= 1;
CREATE INDEX redrive_letter_state ON redrive_letter (state, dead_lettered_at, seq);
CREATE INDEX redrive_letter_queue ON redrive_letter (queue, dead_lettered_at, seq);
CREATE INDEX redrive_letter_dead_letter_queue ON redrive_letter (dead_letter_queue, dead_lettered_at, seq);
CREATE INDEX redrive_letter_reason ON redrive_letter (reason_code, dead_lettered_at, seq);
CREATE INDEX redrive_letter_error ON redrive_letter (error_code, dead_lettered_at, seq);
CREATE INDEX redrive_letter_group ON redrive_letter (fingerprint, dead_lettered_at, seq);
CREATE INDEX redrive_letter_tenant ON redrive_letter (tenant, dead_lettered_at, seq);
CREATE INDEX redrive_letter_key ON redrive_letter (key, dead_lettered_at, seq) WHERE key IS NOT NULL;
CREATE INDEX redrive_letter_expiry ON redrive_letter (expires_at) WHERE state >= 2 AND expires_at IS NOT NULL;
CREATE INDEX redrive_letter_job ON redrive_letter (outstanding_job) WHERE outstanding_job IS NOT NULL;

CREATE TABLE redrive_letter_content (
    seq INTEGER PRIMARY KEY,
    system TEXT NOT NULL,
    priority INTEGER,
    published_at INTEGER NOT NULL,
    message_expires_at INTEGER,
    content_type TEXT,
    headers TEXT,
    properties TEXT,
    history TEXT,
    original BLOB,
    body BLOB NOT NULL
);

CREATE TABLE redrive_audit (
    id INTEGER PRIMARY KEY,
    letter_seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    note TEXT NOT NULL
);
CREATE INDEX redrive_audit_letter ON redrive_audit (letter_seq, id);

-- last_letter: the highest letter when the job was made; what died later is not selected.
-- staged_at, staged_seq: how far the selection has been copied into items.
CREATE TABLE redrive_job (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    request_key TEXT UNIQUE,
    selection TEXT NOT NULL,
    options TEXT NOT NULL,
    actor TEXT NOT NULL,
    note TEXT NOT NULL,
    state TEXT NOT NULL,
    is_staged INTEGER NOT NULL,
    pending INTEGER NOT NULL,
    sent INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    error TEXT,
    token INTEGER NOT NULL,
    owner TEXT,
    lease_until INTEGER,
    last_letter INTEGER NOT NULL,
    staged_at INTEGER NOT NULL,
    staged_seq INTEGER NOT NULL
);

CREATE TABLE redrive_item (
    job_seq INTEGER NOT NULL,
    position INTEGER NOT NULL,
    letter_id TEXT NOT NULL,
    state TEXT NOT NULL,
    why TEXT,
    PRIMARY KEY (job_seq, position)
) WITHOUT ROWID;
CREATE INDEX redrive_item_state ON redrive_item (job_seq, state, position);
