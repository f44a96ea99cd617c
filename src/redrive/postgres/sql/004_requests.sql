-- Who wrote what over the admin API, and what was answered to each Idempotency-Key (core/audit.py). Additive: a redrive
-- that knows only 001 to 003 keeps neither. id sorts by time; status is NULL while the result is not known.

CREATE TABLE @write (
    id text COLLATE "C" PRIMARY KEY,
    at bigint NOT NULL,
    actor text NOT NULL,
    role text NOT NULL,
    operation text NOT NULL,
    target text NOT NULL,
    address text NOT NULL,
    status integer,
    result text NOT NULL
);

-- headers: a JSON object.
CREATE TABLE @answer (
    key text PRIMARY KEY,
    status integer NOT NULL,
    body bytea NOT NULL,
    headers text NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX redrive_answer_expiry ON @answer (expires_at);
