-- Request to look at the limits of tasks that this transaction has changed.
-- Part of settle_limits.sql, too.
-- Parameters: backend; ids; freed: those of which the rate counts less than before, so that the request is urgent. Index: the primary key. Locks: none.
INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at, is_urgent)
SELECT task.backend, change.kind, change.key, clock_timestamp(), bool_or(change.is_urgent)
FROM jobqueue_task AS task CROSS JOIN LATERAL (
    VALUES ('concurrency', task.concurrency_key, FALSE), ('rate', task.rate_key, task.id = ANY(%(freed)s::uuid[]))
) AS change (kind, key, is_urgent)
WHERE task.id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[]))) AND change.key IS NOT NULL
GROUP BY task.backend, change.kind, change.key
