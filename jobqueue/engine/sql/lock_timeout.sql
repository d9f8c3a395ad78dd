-- Limit how long the rest of this transaction waits for a lock.
-- Parameters: wait: text with a unit. Locks: none.
SELECT set_config('lock_timeout', %(wait)s, TRUE)
