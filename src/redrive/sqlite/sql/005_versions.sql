-- The app's version with each letter, what a redrive job's runner keeps between its runs, and indexes for what became
-- of sent letters and for a message's id. Additive.
ALTER TABLE redrive_letter ADD COLUMN version TEXT;
ALTER TABLE redrive_job ADD COLUMN progress TEXT;
CREATE INDEX redrive_letter_previous ON redrive_letter (previous) WHERE previous IS NOT NULL;
CREATE INDEX redrive_letter_message ON redrive_letter (message_id, dead_lettered_at, seq);
