-- Apply the limits of tasks whose outcomes this transaction has written, and request to look at them.
-- A rate counts each start, so a task that is to run again becomes BLOCKED. It still counts for its concurrency limit. So
-- does a task with count_while_retrying that waits to run again, whether or not its attempt counted. A task that was
-- released after its claim gets the rank of its enqueue, not of its admission. So it is before the tasks that were BLOCKED
-- behind it.
-- Parameters: ids; aging: seconds per point of priority; those of store_starts.sql.
-- Index: the primary key. Locks: the rows, which are locked already.
WITH settled AS (
    UPDATE jobqueue_task AS task
    SET status = CASE WHEN task.status = 'READY' THEN 'BLOCKED' ELSE task.status END,
        counts_while_waiting = task.concurrency_key IS NOT NULL,
        rank = CASE
            WHEN task.status = 'READY'
                AND task.rank < task.last_attempted_at - make_interval(secs => task.priority * %(aging)s::float8)
            THEN task.enqueued_at - make_interval(secs => task.priority * %(aging)s::float8) ELSE task.rank
        END
    WHERE task.id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[]))) AND (
        (task.status = 'READY' AND task.rate_key IS NOT NULL)
        OR (task.status = 'SCHEDULED' AND task.count_while_retrying)
    )
),
stored AS ({store_starts})
{request_admission}
