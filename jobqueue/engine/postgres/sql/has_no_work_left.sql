-- Whether nothing of some queues is ready, running, or due soon, and no admission request is due soon that may make a
-- BLOCKED task of theirs READY. Of a paused queue only the running tasks count.
-- Parameters: backend, queues, within_seconds; only_these: FALSE takes due, running and BLOCKED tasks of every queue.
--   requests_read, at_once: it reads so many requests, and of each key so many tasks as a look may admit.
-- Index: jobqueue_task_ready, one step per queue; jobqueue_task_running; jobqueue_task_wake_at;
--   jobqueue_admission_due; jobqueue_task_concurrency, jobqueue_task_rated. Locks: none.
-- Trap: EXISTS drops the ORDER BY that leads the planner to the index. It would read the whole table.
--   So does `queue_name = asked.name`, if most tasks are of one queue. See count_unread.sql.
WITH paused AS MATERIALIZED (
    SELECT array_agg(queue.name::text) AS names FROM jobqueue_queue AS queue
    WHERE queue.backend = %(backend)s AND {is_paused}
)
SELECT
    (
        SELECT TRUE
        FROM unnest(%(queues)s::text[]) AS asked (name)
        CROSS JOIN LATERAL (
            SELECT task.id FROM jobqueue_task AS task
            WHERE task.backend = %(backend)s AND task.queue_name >= asked.name AND task.queue_name <= asked.name
                AND task.status = 'READY'
            ORDER BY task.backend, task.queue_name LIMIT 1
        ) AS ready
        WHERE asked.name <> ALL (COALESCE((SELECT names FROM paused), '{}'))
        LIMIT 1
    ) IS NULL
    AND (
        SELECT TRUE FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'RUNNING'
            AND (NOT %(only_these)s OR queue_name = ANY(%(queues)s::text[]))
        ORDER BY executor_id LIMIT 1
    ) IS NULL
    AND (
        SELECT TRUE FROM jobqueue_task
        WHERE backend = %(backend)s AND status IN ('SCHEDULED', 'SUSPENDED') AND wake_at IS NOT NULL
            AND wake_at <= (SELECT clock_timestamp()) + make_interval(secs => %(within_seconds)s)
            AND (NOT %(only_these)s OR queue_name = ANY(%(queues)s::text[]))
            AND queue_name <> ALL (COALESCE((SELECT names FROM paused), '{}'))
        ORDER BY wake_at LIMIT 1
    ) IS NULL
    AND (
        SELECT TRUE FROM (
            SELECT DISTINCT asked.kind, asked.key FROM (
                SELECT kind, key FROM jobqueue_admissionrequest
                WHERE backend = %(backend)s
                    AND due_at <= (SELECT clock_timestamp()) + make_interval(secs => %(within_seconds)s)
                ORDER BY backend, due_at LIMIT %(requests_read)s
            ) AS asked
        ) AS due
        CROSS JOIN LATERAL (
            (
                SELECT task.queue_name FROM jobqueue_task AS task
                WHERE due.kind = 'concurrency' AND task.backend = %(backend)s AND task.concurrency_key = due.key
                    AND NOT task.counts_while_waiting AND task.status = (SELECT 'BLOCKED') AND task.finished_at IS NULL
                ORDER BY task.backend, task.concurrency_key, task.counts_while_waiting, task.status, task.rank, task.id
                LIMIT %(at_once)s
            )
            UNION ALL
            (
                SELECT task.queue_name FROM jobqueue_task AS task
                WHERE due.kind = 'rate' AND task.backend = %(backend)s AND task.rate_key = due.key
                    AND task.status = 'BLOCKED'
                    AND (task.concurrency_key IS NULL OR task.counts_while_waiting)
                ORDER BY task.backend, task.rate_key, task.status, task.rank, task.id
                LIMIT %(at_once)s
            )
        ) AS waiting
        WHERE (NOT %(only_these)s OR waiting.queue_name = ANY(%(queues)s::text[]))
            AND waiting.queue_name <> ALL (COALESCE((SELECT names FROM paused), '{}'))
        LIMIT 1
    ) IS NULL
