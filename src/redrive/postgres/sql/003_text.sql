-- A text anywhere in reason, message id or key, by index, where the extension pg_trgm may be made or is there already.
-- Where not, letters are looked through (search.py). Additive; to have it later, run the two statements by hand.
--
-- An index that is made in a transaction holds up all who store letters until it is there: half a second for 50 000
-- letters, minutes for many millions, and no start waits that long. One that is made CONCURRENTLY holds up nobody; it
-- cannot be made in a transaction, and leaves a broken index where it is cut off, which a person has to drop. So of a
-- large table it is left to a person, too.
-- invalid_schema_name: the database has no schema public, where CREATE EXTENSION would put it.
DO $$
BEGIN
    BEGIN
        CREATE EXTENSION IF NOT EXISTS pg_trgm;
    EXCEPTION
        WHEN duplicate_object OR unique_violation THEN
            NULL; -- somebody else, with another schema of this database, made it at the same moment
    END;
    IF EXISTS (SELECT 1 FROM @letter OFFSET 50000) THEN
        RAISE NOTICE 'redrive goes on without an index for texts: there are many letters, make it CONCURRENTLY by hand';
        RETURN;
    END IF;
    CREATE INDEX redrive_letter_text ON @letter USING gin
        (lower(reason_text) gin_trgm_ops, lower(message_id) gin_trgm_ops, lower(coalesce(key, '')) gin_trgm_ops);
EXCEPTION
    WHEN insufficient_privilege OR undefined_file OR feature_not_supported OR undefined_object
        OR invalid_schema_name THEN
        RAISE NOTICE 'redrive goes on without an index for texts: %', SQLERRM;
END $$;
