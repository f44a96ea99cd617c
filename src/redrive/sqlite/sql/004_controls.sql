-- What people change of queues while workers run (core/policy/control.py). Additive: a redrive that knows only 001 to 003
-- goes by what its consumers say. document: control_json.

CREATE TABLE redrive_control (
    queue TEXT PRIMARY KEY,
    document TEXT NOT NULL
) WITHOUT ROWID;
