-- Request to look at the limits of tasks that this transaction has changed.
-- Part of settle_limits.sql, too.
-- Parameters: backend; ids. Index: the primary key. Locks: none.
INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at)
SELECT DISTINCT task.backend, change.kind, change.key, clock_timestamp()
FROM jobqueue_task AS task CROSS JOIN LATERAL (
    VALUES ('concurrency', task.concurrency_key), ('rate', task.rate_key)
) AS change (kind, key)
WHERE task.id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[]))) AND change.key IS NOT NULL
