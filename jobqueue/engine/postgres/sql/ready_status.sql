-- The status of a task that may run now: READY, or BLOCKED if it must be admitted. Part of wake.sql and wake_due.sql.
-- Parameters: none. Index: none. Locks: none.
CASE
    WHEN task.rate_key IS NOT NULL OR (task.concurrency_key IS NOT NULL AND NOT task.counts_while_waiting)
    THEN 'BLOCKED' ELSE 'READY'
END
