-- The tables of redrive in a PostgreSQL database. Read this first; claims.py, letters.py, groups.py and jobs.py only move
-- rows between them. @name is redrive_name, in the schema that the store's URL names.
--
-- Times are whole milliseconds since 1970, exactly as redrive has them; the view redrive_letters shows them to people.
-- Names that come from outside may be of any length, and an index has room for 2 700 bytes: so what an index leads with
-- is the start of a name, and the whole name is compared beside it.

CREATE TABLE @meta (
    name text PRIMARY KEY,
    value bigint NOT NULL
);

-- id: sha-256 of queue and key. state: 0 received, 1 processing, 2 processed, 3 failed, 4 dead_lettered
-- (core/idempotency.py). call: who moved the row last, so that one statement can move rows and tell which.
CREATE TABLE @claim (
    id bytea PRIMARY KEY,
    queue text NOT NULL,
    key text NOT NULL,
    state smallint NOT NULL,
    attempts integer NOT NULL,
    cycle integer NOT NULL,
    token bigint NOT NULL,
    owner text,
    lease_until bigint,
    expires_at bigint,
    digest text,
    updated_at bigint NOT NULL,
    lost_by text,
    lost_at bigint,
    call uuid
) WITH (fillfactor = 80);
CREATE INDEX redrive_claim_expiry ON @claim (expires_at) WHERE expires_at IS NOT NULL;

-- Messages published inside a handler's transaction, until the broker has confirmed them. Sent in order of seq; what a
-- killed process left is sent by the next one's upkeep, once it is older than held_until. message: the wire document.
CREATE TABLE @outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    exchange text NOT NULL,
    due_at bigint,
    message text NOT NULL,
    held_until bigint NOT NULL
);

-- What a list shows; the rest of a letter is in redrive_letter_content, which a list never reads.
-- state: 0 pending, 1 reviewed, 2 replayed, 3 closed (core/letters/letter.py); open is state <= 1.
CREATE TABLE @letter (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    queue text NOT NULL,
    dead_letter_queue text NOT NULL,
    message_id text NOT NULL,
    key text,
    tenant text,
    message_type text,
    reason_code text NOT NULL,
    reason_text text NOT NULL,
    error_type text,
    error_code text,
    attempt_count integer NOT NULL,
    fingerprint text NOT NULL,
    group_title text NOT NULL,
    state smallint NOT NULL,
    first_failed_at bigint NOT NULL,
    dead_lettered_at bigint NOT NULL,
    expires_at bigint,
    redrive_count integer NOT NULL,
    previous text,
    outstanding_job text,
    body_bytes bigint NOT NULL,
    version text
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX redrive_letter_id ON @letter (id);
-- "+ 0" keeps the planner from this one where a condition leads (search.py).
CREATE INDEX redrive_letter_died ON @letter ((dead_lettered_at + 0), seq);
CREATE INDEX redrive_letter_open ON @letter ((dead_lettered_at + 0), seq) WHERE state <= 1;
CREATE INDEX redrive_letter_state ON @letter ((state + 0), dead_lettered_at, seq);
CREATE INDEX redrive_letter_queue ON @letter (left(queue, 100), dead_lettered_at, seq);
CREATE INDEX redrive_letter_dead_letter_queue ON @letter (left(dead_letter_queue, 100), dead_lettered_at, seq);
CREATE INDEX redrive_letter_reason ON @letter (left(reason_code, 100), dead_lettered_at, seq);
CREATE INDEX redrive_letter_error ON @letter (left(error_code, 100), dead_lettered_at, seq);
CREATE INDEX redrive_letter_error_type ON @letter (left(error_type, 100), dead_lettered_at, seq);
CREATE INDEX redrive_letter_type ON @letter (left(message_type, 100), dead_lettered_at, seq);
CREATE INDEX redrive_letter_group ON @letter (left(fingerprint, 100), dead_lettered_at, seq);
CREATE INDEX redrive_letter_tenant ON @letter (left(tenant, 100), dead_lettered_at, seq);
CREATE INDEX redrive_letter_message ON @letter (left(message_id, 100), dead_lettered_at, seq);
CREATE INDEX redrive_letter_key ON @letter (left(key, 100), dead_lettered_at, seq) WHERE key IS NOT NULL;
CREATE INDEX redrive_letter_previous ON @letter (left(previous, 100)) WHERE previous IS NOT NULL;
CREATE INDEX redrive_letter_expiry ON @letter (expires_at) WHERE state >= 2 AND expires_at IS NOT NULL;
CREATE INDEX redrive_letter_job ON @letter (left(outstanding_job, 100)) WHERE outstanding_job IS NOT NULL;

-- header_texts: each header as {name: text}, for selections; headers is what comes back.
CREATE TABLE @letter_content (
    seq bigint PRIMARY KEY,
    system text NOT NULL,
    priority bigint,
    published_at bigint NOT NULL,
    message_expires_at bigint,
    content_type text,
    headers text,
    header_texts jsonb,
    properties text,
    history text,
    original bytea,
    body bytea NOT NULL
);

CREATE TABLE @audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    letter_seq bigint NOT NULL,
    at bigint NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    note text NOT NULL
);
CREATE INDEX redrive_audit_letter ON @audit (letter_seq, id);

-- How many letters there are, by what people count them by. Rows are only added, never changed, so that those who store
-- letters at one moment do not wait for each other; letters.fold makes few of many. what: 0 state, 1 queue,
-- 2 reason_code, 3 fingerprint, 4 tenant.
CREATE TABLE @letter_count (
    what smallint NOT NULL,
    name text NOT NULL,
    count bigint NOT NULL
);

-- pending, reviewed, replayed, closed: letters of the group by state. seen: all it ever had. redriven: sends; succeeded:
-- sends whose letter was closed and has not come back; returned: letters that name one of this group as their previous
-- one. state: 0 open, 1 acknowledged, 2 ignored, 3 resolved (core/letters/groups.py). changed_at is NULL while nobody
-- wrote on it: such a group goes with its last letter.
CREATE TABLE @group (
    fingerprint text PRIMARY KEY,
    title text NOT NULL,
    queue text NOT NULL,
    dead_letter_queue text NOT NULL,
    reason_code text NOT NULL,
    error_type text,
    error_code text,
    pending bigint NOT NULL DEFAULT 0,
    reviewed bigint NOT NULL DEFAULT 0,
    replayed bigint NOT NULL DEFAULT 0,
    closed bigint NOT NULL DEFAULT 0,
    seen bigint NOT NULL DEFAULT 0,
    redriven bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    returned bigint NOT NULL DEFAULT 0,
    first_seen bigint NOT NULL,
    last_seen bigint NOT NULL,
    state smallint NOT NULL DEFAULT 0,
    note text NOT NULL DEFAULT '',
    assignee text,
    ignored text,
    resolved_in text,
    count_then bigint NOT NULL DEFAULT 0,
    changed_at bigint,
    changed_by text
) WITH (fillfactor = 80);
CREATE INDEX redrive_group_waiting ON @group ((-(pending + reviewed)), fingerprint);

CREATE TABLE @group_hour (
    fingerprint text NOT NULL,
    at bigint NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (fingerprint, at)
);

-- what: 0 tenant, 1 version.
CREATE TABLE @group_name (
    id bytea PRIMARY KEY,
    fingerprint text NOT NULL,
    what smallint NOT NULL,
    name text NOT NULL,
    count bigint NOT NULL
);
CREATE INDEX redrive_group_name_of ON @group_name (fingerprint, what, count);

CREATE TABLE @group_audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fingerprint text NOT NULL,
    at bigint NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    note text NOT NULL
);
CREATE INDEX redrive_group_audit_of ON @group_audit (fingerprint, id);

-- last_letter: the highest letter when the job was made; what died later is not selected.
-- staged_at, staged_seq: how far the selection has been copied into items.
CREATE TABLE @job (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    request_key text UNIQUE,
    selection text NOT NULL,
    options text NOT NULL,
    actor text NOT NULL,
    note text NOT NULL,
    state text NOT NULL,
    is_staged boolean NOT NULL,
    pending bigint NOT NULL,
    sent bigint NOT NULL,
    skipped bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    error text,
    token bigint NOT NULL,
    owner text,
    lease_until bigint,
    progress text,
    last_letter bigint NOT NULL,
    staged_at bigint NOT NULL,
    staged_seq bigint NOT NULL
);

CREATE TABLE @item (
    job_seq bigint NOT NULL,
    position bigint NOT NULL,
    letter_id text NOT NULL,
    state text NOT NULL,
    why text,
    PRIMARY KEY (job_seq, position)
);
CREATE INDEX redrive_item_state ON @item (job_seq, state, position);

CREATE TABLE @control (
    queue text PRIMARY KEY,
    document text NOT NULL
);

-- For people with psql.
CREATE VIEW @letters AS
SELECT id, queue, dead_letter_queue, message_id, key, tenant, message_type, reason_code, reason_text, error_type,
    error_code, attempt_count, fingerprint, group_title,
    (ARRAY['pending', 'reviewed', 'replayed', 'closed'])[state + 1] AS state,
    to_timestamp(first_failed_at / 1000.0) AS first_failed_at,
    to_timestamp(dead_lettered_at / 1000.0) AS dead_lettered_at,
    to_timestamp(expires_at / 1000.0) AS expires_at,
    redrive_count, previous, outstanding_job, body_bytes, version
FROM @letter;

-- ------------------------------------------------------------------------------------------------ counting
-- Every trigger works on all rows of a statement at once, and takes groups in the order of their fingerprints, so that
-- two of them at one moment wait for each other and never cross.

CREATE FUNCTION @letter_comes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO @letter_count (what, name, count)
    SELECT 0, state::text, count(*) FROM fresh GROUP BY 2
    UNION ALL SELECT 1, queue, count(*) FROM fresh GROUP BY 2
    UNION ALL SELECT 2, reason_code, count(*) FROM fresh GROUP BY 2
    UNION ALL SELECT 3, fingerprint, count(*) FROM fresh GROUP BY 2
    UNION ALL SELECT 4, coalesce(tenant, '-'), count(*) FROM fresh GROUP BY 2;
    INSERT INTO @group AS g (fingerprint, title, queue, dead_letter_queue, reason_code, error_type, error_code, pending,
        reviewed, replayed, closed, seen, returned, first_seen, last_seen)
    SELECT fingerprint, (array_agg(group_title ORDER BY seq))[1], (array_agg(queue ORDER BY seq))[1],
        (array_agg(dead_letter_queue ORDER BY seq))[1], (array_agg(reason_code ORDER BY seq))[1],
        (array_agg(error_type ORDER BY seq))[1], (array_agg(error_code ORDER BY seq))[1],
        sum(n * (state = 0)::int), sum(n * (state = 1)::int), sum(n * (state = 2)::int),
        sum(n * (state = 3)::int), sum(n), sum(back), min(dead_lettered_at), max(dead_lettered_at)
    FROM (
        SELECT f.*, 1 AS n, 0 AS back FROM fresh f
        UNION ALL
        SELECT l.*, 0, 1 FROM fresh f JOIN @letter l ON l.id = f.previous
    ) each
    GROUP BY fingerprint ORDER BY fingerprint
    ON CONFLICT (fingerprint) DO UPDATE SET
        pending = g.pending + excluded.pending, reviewed = g.reviewed + excluded.reviewed,
        replayed = g.replayed + excluded.replayed, closed = g.closed + excluded.closed, seen = g.seen + excluded.seen,
        returned = g.returned + excluded.returned,
        first_seen = least(g.first_seen, excluded.first_seen), last_seen = greatest(g.last_seen, excluded.last_seen);
    INSERT INTO @group_hour AS h (fingerprint, at, count)
    SELECT fingerprint, dead_lettered_at - mod(dead_lettered_at, 3600000), count(*) FROM fresh GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (fingerprint, at) DO UPDATE SET count = h.count + excluded.count;
    INSERT INTO @group_name AS n (id, fingerprint, what, name, count)
    SELECT sha256(convert_to(fingerprint || ' ' || what || ' ' || name, 'UTF8')) AS id, fingerprint, what, name, count(*)
    FROM (
        SELECT fingerprint, 0 AS what, coalesce(tenant, '-') AS name FROM fresh
        UNION ALL SELECT fingerprint, 1, version FROM fresh WHERE version IS NOT NULL
    ) each
    GROUP BY 1, 2, 3, 4 ORDER BY 1
    ON CONFLICT (id) DO UPDATE SET count = n.count + excluded.count;
    RETURN NULL;
END $$;
CREATE TRIGGER redrive_letter_comes AFTER INSERT ON @letter
REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION @letter_comes();

CREATE FUNCTION @letter_moves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM before b JOIN after a USING (seq) WHERE a.state <> b.state) THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM @group WHERE fingerprint IN
        (SELECT a.fingerprint FROM before b JOIN after a USING (seq) WHERE a.state <> b.state)
        ORDER BY fingerprint FOR UPDATE;
    INSERT INTO @letter_count (what, name, count)
    SELECT 0, b.state::text, -count(*) FROM before b JOIN after a USING (seq) WHERE a.state <> b.state GROUP BY 2
    UNION ALL SELECT 0, a.state::text, count(*) FROM before b JOIN after a USING (seq) WHERE a.state <> b.state GROUP BY 2;
    UPDATE @group g SET
        pending = g.pending + m.pending, reviewed = g.reviewed + m.reviewed, replayed = g.replayed + m.replayed,
        closed = g.closed + m.closed, redriven = g.redriven + m.redriven, succeeded = g.succeeded + m.succeeded
    FROM (
        SELECT a.fingerprint,
            sum((a.state = 0)::int - (b.state = 0)::int) AS pending,
            sum((a.state = 1)::int - (b.state = 1)::int) AS reviewed,
            sum((a.state = 2)::int - (b.state = 2)::int) AS replayed,
            sum((a.state = 3)::int - (b.state = 3)::int) AS closed,
            sum((a.state = 2)::int) AS redriven,
            sum((b.state = 2 AND a.state = 3 AND NOT EXISTS (SELECT 1 FROM @letter l
                WHERE left(l.previous, 100) = left(a.id, 100) AND l.previous = a.id))::int) AS succeeded
        FROM before b JOIN after a USING (seq) WHERE a.state <> b.state GROUP BY a.fingerprint
    ) m WHERE g.fingerprint = m.fingerprint;
    RETURN NULL;
END $$;
CREATE TRIGGER redrive_letter_moves AFTER UPDATE ON @letter
REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION @letter_moves();

CREATE FUNCTION @letter_goes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM @group WHERE fingerprint IN (SELECT fingerprint FROM gone) ORDER BY fingerprint FOR UPDATE;
    INSERT INTO @letter_count (what, name, count)
    SELECT 0, state::text, -count(*) FROM gone GROUP BY 2
    UNION ALL SELECT 1, queue, -count(*) FROM gone GROUP BY 2
    UNION ALL SELECT 2, reason_code, -count(*) FROM gone GROUP BY 2
    UNION ALL SELECT 3, fingerprint, -count(*) FROM gone GROUP BY 2
    UNION ALL SELECT 4, coalesce(tenant, '-'), -count(*) FROM gone GROUP BY 2;
    UPDATE @group g SET pending = g.pending - m.pending, reviewed = g.reviewed - m.reviewed,
        replayed = g.replayed - m.replayed, closed = g.closed - m.closed
    FROM (
        SELECT fingerprint, sum((state = 0)::int) AS pending, sum((state = 1)::int) AS reviewed,
            sum((state = 2)::int) AS replayed, sum((state = 3)::int) AS closed
        FROM gone GROUP BY fingerprint
    ) m WHERE g.fingerprint = m.fingerprint;
    UPDATE @group_name n SET count = n.count - m.count
    FROM (
        SELECT sha256(convert_to(fingerprint || ' ' || what || ' ' || name, 'UTF8')) AS id, count(*) AS count
        FROM (
            SELECT fingerprint, 0 AS what, coalesce(tenant, '-') AS name FROM gone
            UNION ALL SELECT fingerprint, 1, version FROM gone WHERE version IS NOT NULL
        ) each GROUP BY 1
    ) m WHERE n.id = m.id;
    DELETE FROM @group_name WHERE fingerprint IN (SELECT fingerprint FROM gone) AND count <= 0;
    DELETE FROM @group_hour h USING @group g WHERE h.fingerprint = g.fingerprint
        AND g.fingerprint IN (SELECT fingerprint FROM gone)
        AND g.pending + g.reviewed + g.replayed + g.closed <= 0 AND g.changed_at IS NULL;
    DELETE FROM @group WHERE fingerprint IN (SELECT fingerprint FROM gone)
        AND pending + reviewed + replayed + closed <= 0 AND changed_at IS NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER redrive_letter_goes AFTER DELETE ON @letter
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION @letter_goes();
