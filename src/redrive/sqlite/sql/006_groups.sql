-- Groups: the letters of one fingerprint, counted as they come, move and go. Additive: triggers keep the counts, so a
-- redrive that knows only what came before goes on storing, moving and removing letters.
--
-- pending, reviewed, replayed, closed: its letters by state (redrive_letter.state 0, 1, 2, 3). seen: all it ever had.
-- redriven: sends; succeeded: sends whose letter was closed and has not come back; returned: letters that name one of
-- this group as their previous one. state: 0 open, 1 acknowledged, 2 ignored, 3 resolved (core/letters/groups.py).
-- changed_at is NULL while nobody wrote on it: such a group goes with its last letter.
CREATE TABLE redrive_group (
    fingerprint TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    queue TEXT NOT NULL,
    dead_letter_queue TEXT NOT NULL,
    reason_code TEXT NOT NULL,
    error_type TEXT,
    error_code TEXT,
    pending INTEGER NOT NULL,
    reviewed INTEGER NOT NULL,
    replayed INTEGER NOT NULL,
    closed INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    redriven INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    returned INTEGER NOT NULL DEFAULT 0,
    first_seen INTEGER NOT NULL,
    last_seen INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    note TEXT NOT NULL DEFAULT '',
    assignee TEXT,
    ignored TEXT,
    resolved_in TEXT,
    count_then INTEGER NOT NULL DEFAULT 0,
    changed_at INTEGER,
    changed_by TEXT
) WITHOUT ROWID;
CREATE INDEX redrive_group_waiting ON redrive_group (-(pending + reviewed), fingerprint);

CREATE TABLE redrive_group_hour (
    fingerprint TEXT NOT NULL,
    at INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, at)
) WITHOUT ROWID;

CREATE TABLE redrive_group_tenant (
    fingerprint TEXT NOT NULL,
    name TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, name)
) WITHOUT ROWID;

CREATE TABLE redrive_group_version (
    fingerprint TEXT NOT NULL,
    name TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, name)
) WITHOUT ROWID;

CREATE TABLE redrive_group_audit (
    id INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    note TEXT NOT NULL
);
CREATE INDEX redrive_group_audit_of ON redrive_group_audit (fingerprint, id);

-- How many letters of each state a queue (kind 0), a reason code (1), a tenant (2) has: what is asked most often,
-- without a look at a million letters. The same by group is in redrive_group.
CREATE TABLE redrive_letter_count (
    kind INTEGER NOT NULL,
    state INTEGER NOT NULL,
    name TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (kind, state, name)
) WITHOUT ROWID;

CREATE INDEX redrive_letter_type ON redrive_letter (message_type, dead_lettered_at, seq);
CREATE INDEX redrive_letter_error_type ON redrive_letter (error_type, dead_lettered_at, seq);

-- The groups as the letters say.
CREATE VIEW redrive_group_now AS
SELECT g.fingerprint, l.group_title, l.queue, l.dead_letter_queue, l.reason_code, l.error_type, l.error_code, g.pending,
    g.reviewed, g.replayed, g.closed, g.seen, g.first_seen, g.last_seen
FROM (
    SELECT fingerprint, min(seq) AS first, sum(state = 0) AS pending, sum(state = 1) AS reviewed,
        sum(state = 2) AS replayed, sum(state = 3) AS closed, count(*) AS seen,
        min(dead_lettered_at) AS first_seen, max(dead_lettered_at) AS last_seen
    FROM redrive_letter GROUP BY fingerprint
) g JOIN redrive_letter l ON l.seq = g.first;

CREATE VIEW redrive_letter_count_now AS
SELECT 0 AS kind, state, queue AS name, count(*) AS count FROM redrive_letter GROUP BY 2, 3
UNION ALL SELECT 1, state, reason_code, count(*) FROM redrive_letter GROUP BY 2, 3
UNION ALL SELECT 2, state, COALESCE(tenant, '-'), count(*) FROM redrive_letter GROUP BY 2, 3;

-- What lies there already.
INSERT INTO redrive_group (fingerprint, title, queue, dead_letter_queue, reason_code, error_type, error_code, pending,
    reviewed, replayed, closed, seen, first_seen, last_seen)
SELECT * FROM redrive_group_now;
INSERT INTO redrive_group_hour (fingerprint, at, count)
SELECT fingerprint, dead_lettered_at - dead_lettered_at % 3600000, count(*) FROM redrive_letter GROUP BY 1, 2;
INSERT INTO redrive_letter_count (kind, state, name, count) SELECT * FROM redrive_letter_count_now;
INSERT INTO redrive_group_tenant (fingerprint, name, count)
SELECT fingerprint, COALESCE(tenant, '-'), count(*) FROM redrive_letter GROUP BY 1, 2;
INSERT INTO redrive_group_version (fingerprint, name, count)
SELECT fingerprint, version, count(*) FROM redrive_letter WHERE version IS NOT NULL GROUP BY 1, 2;
UPDATE redrive_group SET
    redriven = (SELECT count(*) FROM redrive_letter l JOIN redrive_audit a ON a.letter_seq = l.seq
        WHERE l.fingerprint = redrive_group.fingerprint AND a.action = 'replayed'),
    succeeded = (SELECT count(*) FROM redrive_letter l JOIN redrive_audit a ON a.letter_seq = l.seq
        WHERE l.fingerprint = redrive_group.fingerprint AND a.action = 'closed' AND a.actor = 'redrive'),
    returned = (SELECT count(*) FROM redrive_letter l JOIN redrive_letter n ON n.previous = l.id
        WHERE l.fingerprint = redrive_group.fingerprint);

CREATE TRIGGER redrive_letter_comes AFTER INSERT ON redrive_letter
BEGIN
    INSERT INTO redrive_group (fingerprint, title, queue, dead_letter_queue, reason_code, error_type, error_code,
        pending, reviewed, replayed, closed, seen, first_seen, last_seen)
    VALUES (NEW.fingerprint, NEW.group_title, NEW.queue, NEW.dead_letter_queue, NEW.reason_code, NEW.error_type,
        NEW.error_code, NEW.state = 0, NEW.state = 1, NEW.state = 2, NEW.state = 3, 1, NEW.dead_lettered_at,
        NEW.dead_lettered_at)
    ON CONFLICT (fingerprint) DO UPDATE SET
        pending = pending + excluded.pending, reviewed = reviewed + excluded.reviewed,
        replayed = replayed + excluded.replayed, closed = closed + excluded.closed, seen = seen + 1,
        first_seen = min(first_seen, excluded.first_seen), last_seen = max(last_seen, excluded.last_seen);
    INSERT INTO redrive_group_hour (fingerprint, at, count)
    VALUES (NEW.fingerprint, NEW.dead_lettered_at - NEW.dead_lettered_at % 3600000, 1)
    ON CONFLICT (fingerprint, at) DO UPDATE SET count = count + 1;
    INSERT INTO redrive_group_tenant (fingerprint, name, count) VALUES (NEW.fingerprint, COALESCE(NEW.tenant, '-'), 1)
    ON CONFLICT (fingerprint, name) DO UPDATE SET count = count + 1;
    INSERT INTO redrive_letter_count (kind, state, name, count)
    VALUES (0, NEW.state, NEW.queue, 1), (1, NEW.state, NEW.reason_code, 1),
        (2, NEW.state, COALESCE(NEW.tenant, '-'), 1)
    ON CONFLICT (kind, state, name) DO UPDATE SET count = count + 1;
END;

CREATE TRIGGER redrive_letter_comes_with_version AFTER INSERT ON redrive_letter WHEN NEW.version IS NOT NULL
BEGIN
    INSERT INTO redrive_group_version (fingerprint, name, count) VALUES (NEW.fingerprint, NEW.version, 1)
    ON CONFLICT (fingerprint, name) DO UPDATE SET count = count + 1;
END;

CREATE TRIGGER redrive_letter_comes_back AFTER INSERT ON redrive_letter WHEN NEW.previous IS NOT NULL
BEGIN
    UPDATE redrive_group SET returned = returned + 1
    WHERE fingerprint = (SELECT fingerprint FROM redrive_letter WHERE id = NEW.previous);
END;

CREATE TRIGGER redrive_letter_moves AFTER UPDATE OF state ON redrive_letter WHEN OLD.state <> NEW.state
BEGIN
    UPDATE redrive_group SET
        pending = pending - (OLD.state = 0) + (NEW.state = 0),
        reviewed = reviewed - (OLD.state = 1) + (NEW.state = 1),
        replayed = replayed - (OLD.state = 2) + (NEW.state = 2),
        closed = closed - (OLD.state = 3) + (NEW.state = 3),
        redriven = redriven + (NEW.state = 2),
        succeeded = succeeded + (OLD.state = 2 AND NEW.state = 3
            AND NOT EXISTS (SELECT 1 FROM redrive_letter WHERE previous = NEW.id))
    WHERE fingerprint = NEW.fingerprint;
    UPDATE redrive_letter_count SET count = count - 1
    WHERE (kind, state, name) IN (VALUES (0, OLD.state, OLD.queue), (1, OLD.state, OLD.reason_code),
        (2, OLD.state, COALESCE(OLD.tenant, '-')));
    DELETE FROM redrive_letter_count WHERE kind = 2 AND state = OLD.state AND name = COALESCE(OLD.tenant, '-')
        AND count <= 0;
    INSERT INTO redrive_letter_count (kind, state, name, count)
    VALUES (0, NEW.state, NEW.queue, 1), (1, NEW.state, NEW.reason_code, 1),
        (2, NEW.state, COALESCE(NEW.tenant, '-'), 1)
    ON CONFLICT (kind, state, name) DO UPDATE SET count = count + 1;
END;

CREATE TRIGGER redrive_letter_goes AFTER DELETE ON redrive_letter
BEGIN
    UPDATE redrive_letter_count SET count = count - 1
    WHERE (kind, state, name) IN (VALUES (0, OLD.state, OLD.queue), (1, OLD.state, OLD.reason_code),
        (2, OLD.state, COALESCE(OLD.tenant, '-')));
    DELETE FROM redrive_letter_count WHERE kind = 2 AND state = OLD.state AND name = COALESCE(OLD.tenant, '-')
        AND count <= 0;
    UPDATE redrive_group SET
        pending = pending - (OLD.state = 0), reviewed = reviewed - (OLD.state = 1),
        replayed = replayed - (OLD.state = 2), closed = closed - (OLD.state = 3)
    WHERE fingerprint = OLD.fingerprint;
    UPDATE redrive_group_tenant SET count = count - 1
    WHERE fingerprint = OLD.fingerprint AND name = COALESCE(OLD.tenant, '-');
    DELETE FROM redrive_group_tenant
    WHERE fingerprint = OLD.fingerprint AND name = COALESCE(OLD.tenant, '-') AND count <= 0;
    UPDATE redrive_group_version SET count = count - 1 WHERE fingerprint = OLD.fingerprint AND name = OLD.version;
    DELETE FROM redrive_group_version WHERE fingerprint = OLD.fingerprint AND name = OLD.version AND count <= 0;
    DELETE FROM redrive_group
    WHERE fingerprint = OLD.fingerprint AND pending + reviewed + replayed + closed <= 0 AND changed_at IS NULL;
END;

CREATE TRIGGER redrive_group_goes AFTER DELETE ON redrive_group
BEGIN
    DELETE FROM redrive_group_hour WHERE fingerprint = OLD.fingerprint;
END;
