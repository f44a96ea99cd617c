-- A text anywhere in reason, message id or key, by index, where the extension pg_trgm may be made or is there already.
-- Where not, letters are looked through (search.py). Additive; to have it later, run the two statements by hand.
-- invalid_schema_name: the database has no schema public, where CREATE EXTENSION would put it.
DO $$
BEGIN
    BEGIN
        CREATE EXTENSION IF NOT EXISTS pg_trgm;
    EXCEPTION
        WHEN duplicate_object OR unique_violation THEN
            NULL; -- somebody else, with another schema of this database, made it at the same moment
    END;
    CREATE INDEX redrive_letter_text ON @letter USING gin
        (lower(reason_text) gin_trgm_ops, lower(message_id) gin_trgm_ops, lower(coalesce(key, '')) gin_trgm_ops);
EXCEPTION
    WHEN insufficient_privilege OR undefined_file OR feature_not_supported OR undefined_object
        OR invalid_schema_name THEN
        RAISE NOTICE 'redrive goes on without an index for texts: %', SQLERRM;
END $$;
