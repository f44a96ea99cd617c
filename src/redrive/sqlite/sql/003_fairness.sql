-- Taking turns between tenants, and rates that all processes on the file share. Additive: triggers keep the turns, so a
-- redrive that knows only 001 and 002 goes on publishing to a fair queue and taking from it (in its own order).
--
-- A fair queue has a row in redrive_fair. Then every row of redrive_ready has a row in redrive_turn_ready, which orders
-- the messages of one group, and every group with such rows has a row in redrive_turn, which says whose turn it is
-- (core/policy/fairness.py). A queue that is not fair costs one look into an empty table for each message.

-- The group of a message where it is not its tenant as it stands there (core/policy/fairness.py, group_of).
ALTER TABLE redrive_message ADD COLUMN turn_group TEXT;

-- virtual_now, last_turn, run: VirtualTime. mean_cost: in ms, 0 where costs are not measured.
CREATE TABLE redrive_fair (
    queue_id INTEGER PRIMARY KEY,
    virtual_now INTEGER NOT NULL,
    last_turn INTEGER NOT NULL,
    run INTEGER NOT NULL,
    mean_cost REAL NOT NULL
);

-- state: 0 idle, 1 waiting for its turn, 2 waiting and held back by a limit of its own until held_until.
-- waiting: its rows in redrive_turn_ready. started, started_at: how many starts, and when the last one was.
CREATE TABLE redrive_turn (
    id INTEGER PRIMARY KEY,
    queue_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    state INTEGER NOT NULL,
    place INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    held_until INTEGER NOT NULL,
    started INTEGER NOT NULL,
    started_at INTEGER,
    UNIQUE (queue_id, name)
);
CREATE INDEX redrive_turn_next ON redrive_turn (queue_id, state, place);

CREATE TABLE redrive_turn_ready (
    seq INTEGER PRIMARY KEY,
    turn_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    due_at INTEGER NOT NULL
);
CREATE INDEX redrive_turn_ready_order ON redrive_turn_ready (turn_id, priority, due_at);

-- Starts of a queue (name '') or of one of its groups, within a sliding window (core/policy/flow.py, Window).
-- free_at: when one more may start. forgotten_at: when the row says nothing any more.
CREATE TABLE redrive_window (
    queue_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    counts TEXT NOT NULL,
    free_at INTEGER NOT NULL,
    forgotten_at INTEGER NOT NULL,
    PRIMARY KEY (queue_id, name)
) WITHOUT ROWID;
CREATE INDEX redrive_window_forgotten ON redrive_window (queue_id, forgotten_at);

-- What changes with every message (waiting) is kept apart from what the index orders by (state, place).
CREATE TRIGGER redrive_ready_comes AFTER INSERT ON redrive_ready
WHEN EXISTS (SELECT 1 FROM redrive_fair WHERE queue_id = NEW.queue_id)
BEGIN
    INSERT INTO redrive_turn (queue_id, name, state, place, waiting, held_until, started)
    SELECT NEW.queue_id, COALESCE(m.turn_group, m.tenant, '-'), 0, 0, 0, 0, 0
    FROM redrive_message m WHERE m.seq = NEW.seq
    ON CONFLICT (queue_id, name) DO NOTHING;
    INSERT INTO redrive_turn_ready (seq, turn_id, priority, due_at)
    SELECT NEW.seq, t.id, NEW.priority, NEW.due_at
    FROM redrive_message m CROSS JOIN redrive_turn t
    WHERE m.seq = NEW.seq AND t.queue_id = NEW.queue_id AND t.name = COALESCE(m.turn_group, m.tenant, '-');
    UPDATE redrive_turn SET waiting = waiting + 1
    WHERE id = (SELECT turn_id FROM redrive_turn_ready WHERE seq = NEW.seq);
    UPDATE redrive_turn SET
        state = 1, place = max(place, (SELECT virtual_now FROM redrive_fair WHERE queue_id = NEW.queue_id))
    WHERE id = (SELECT turn_id FROM redrive_turn_ready WHERE seq = NEW.seq) AND state = 0;
END;

-- A take by turns has counted its messages and deleted their rows of redrive_turn_ready by itself, all in two steps.
CREATE TRIGGER redrive_ready_goes AFTER DELETE ON redrive_ready
WHEN EXISTS (SELECT 1 FROM redrive_turn_ready WHERE seq = OLD.seq)
BEGIN
    UPDATE redrive_turn SET waiting = waiting - 1
    WHERE id = (SELECT turn_id FROM redrive_turn_ready WHERE seq = OLD.seq);
    UPDATE redrive_turn SET state = 0
    WHERE id = (SELECT turn_id FROM redrive_turn_ready WHERE seq = OLD.seq) AND waiting = 0;
    DELETE FROM redrive_turn_ready WHERE seq = OLD.seq;
END;
