-- min_reader_version: 2
-- Counts of the letters of a queue as they were kept of all letters: by state, reason, group and tenant, so that no
-- letter is read for them. It takes the place of redrive_letter_count, which an older redrive writes.
--
-- Who stores or moves letters only adds rows to redrive_tally_new, so that nobody waits for another; letters.fold adds
-- them up in redrive_tally now and then, one process at a time. The count is the sum of both. what: 0 all (no name),
-- 1 reason_code, 2 fingerprint, 3 tenant. id: sha-256 of the names, which may be of any length.
LOCK TABLE @letter IN SHARE ROW EXCLUSIVE MODE;

CREATE TABLE @tally (
    id bytea PRIMARY KEY,
    queue text NOT NULL,
    dead_letter_queue text NOT NULL,
    state smallint NOT NULL,
    what smallint NOT NULL,
    name text NOT NULL,
    count bigint NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX redrive_tally_queue ON @tally (left(queue, 100));
CREATE INDEX redrive_tally_dead_letter_queue ON @tally (left(dead_letter_queue, 100));

CREATE TABLE @tally_new (
    queue text NOT NULL,
    dead_letter_queue text NOT NULL,
    state smallint NOT NULL,
    what smallint NOT NULL,
    name text NOT NULL,
    count bigint NOT NULL
);

-- The tally as the letters say.
CREATE VIEW @tally_now AS
SELECT l.queue, l.dead_letter_queue, l.state, n.what::smallint AS what, n.name, count(*) AS count
FROM @letter l
CROSS JOIN LATERAL (VALUES (0, ''), (1, l.reason_code), (2, l.fingerprint), (3, coalesce(l.tenant, '-'))) n (what, name)
GROUP BY 1, 2, 3, 4, 5;

INSERT INTO @tally_new SELECT queue, dead_letter_queue, state, what, name, count FROM @tally_now;
DROP TABLE @letter_count;

CREATE OR REPLACE FUNCTION @letter_comes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO @tally_new (queue, dead_letter_queue, state, what, name, count)
    SELECT f.queue, f.dead_letter_queue, f.state, n.what, n.name, count(*) FROM fresh f
    CROSS JOIN LATERAL (VALUES (0, ''), (1, f.reason_code), (2, f.fingerprint), (3, coalesce(f.tenant, '-'))) n (what, name)
    GROUP BY 1, 2, 3, 4, 5;
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

CREATE OR REPLACE FUNCTION @letter_moves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM before b JOIN after a USING (seq) WHERE a.state <> b.state) THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM @group WHERE fingerprint IN
        (SELECT a.fingerprint FROM before b JOIN after a USING (seq) WHERE a.state <> b.state)
        ORDER BY fingerprint FOR UPDATE;
    INSERT INTO @tally_new (queue, dead_letter_queue, state, what, name, count)
    SELECT a.queue, a.dead_letter_queue, s.state, n.what, n.name, sum(s.change) FROM before b JOIN after a USING (seq)
    CROSS JOIN LATERAL (VALUES (b.state, -1), (a.state, 1)) s (state, change)
    CROSS JOIN LATERAL (VALUES (0, ''), (1, a.reason_code), (2, a.fingerprint), (3, coalesce(a.tenant, '-'))) n (what, name)
    WHERE a.state <> b.state GROUP BY 1, 2, 3, 4, 5;
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

CREATE OR REPLACE FUNCTION @letter_goes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM @group WHERE fingerprint IN (SELECT fingerprint FROM gone) ORDER BY fingerprint FOR UPDATE;
    INSERT INTO @tally_new (queue, dead_letter_queue, state, what, name, count)
    SELECT g.queue, g.dead_letter_queue, g.state, n.what, n.name, -count(*) FROM gone g
    CROSS JOIN LATERAL (VALUES (0, ''), (1, g.reason_code), (2, g.fingerprint), (3, coalesce(g.tenant, '-'))) n (what, name)
    GROUP BY 1, 2, 3, 4, 5;
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
