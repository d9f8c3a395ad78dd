-- Request to look at all keys of a limit that have BLOCKED tasks.
-- Parameters: backend; kind; first_key, before_key: the range of the limit's keys; keys_per_second: how many of the
--   requests become due in each second, so that the keys of other limits do not wait for them.
-- Index: jobqueue_task_concurrency, jobqueue_task_rated: the entries of the range. Locks: none.
INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at)
SELECT %(backend)s, %(kind)s, waiting.key,
    clock_timestamp() + make_interval(secs => (row_number() OVER () - 1) / %(keys_per_second)s::float8)
FROM (
    SELECT task.concurrency_key AS key FROM jobqueue_task AS task
    WHERE %(kind)s = 'concurrency' AND task.backend = %(backend)s AND task.concurrency_key >= %(first_key)s
        AND task.concurrency_key < %(before_key)s AND NOT task.counts_while_waiting AND task.status = 'BLOCKED'
        AND task.finished_at IS NULL
    UNION
    SELECT task.rate_key FROM jobqueue_task AS task
    WHERE %(kind)s = 'rate' AND task.backend = %(backend)s AND task.rate_key >= %(first_key)s
        AND task.rate_key < %(before_key)s AND task.status = 'BLOCKED'
        AND (task.concurrency_key IS NULL OR task.counts_while_waiting)
) AS waiting
