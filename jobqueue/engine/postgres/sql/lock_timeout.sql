-- Limit how long the rest of this transaction waits for a lock, and return the previous limit.
-- Parameters: wait: text with a unit. Index: none. Locks: none.
WITH setting AS MATERIALIZED (SELECT current_setting('lock_timeout') AS before)
SELECT before FROM setting WHERE set_config('lock_timeout', %(wait)s, TRUE) IS NOT NULL
