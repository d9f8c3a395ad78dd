-- Limit how long the rest of this transaction waits for a lock; answers with the limit before.
-- Parameters: wait: text with a unit. Locks: none.
WITH setting AS MATERIALIZED (SELECT current_setting('lock_timeout') AS before)
SELECT before FROM setting WHERE set_config('lock_timeout', %(wait)s, TRUE) IS NOT NULL
