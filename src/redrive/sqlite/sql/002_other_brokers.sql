-- What a file keeps for an app whose messages lie in another broker: its claims, letters and jobs stand here, and with
-- them what `delivery.transaction()` needs. Additive: a redrive that knows only 001 goes on working on the file.

-- The last start that never ended, until one after it comes to an end (core/idempotency.py, ClaimRecord.lost).
ALTER TABLE redrive_claim ADD COLUMN lost_by TEXT;
ALTER TABLE redrive_claim ADD COLUMN lost_at INTEGER;

-- Messages published inside a handler's transaction, until the broker has confirmed them. Sent in order of seq; what a
-- killed process left is sent by the next one's upkeep, once it is older than `held_until`. message: the wire document.
CREATE TABLE redrive_outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    exchange TEXT NOT NULL,
    due_at INTEGER,
    message TEXT NOT NULL,
    held_until INTEGER NOT NULL
);
