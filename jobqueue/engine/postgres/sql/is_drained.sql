-- Whether nothing of some queues is ready, running, or due soon, and no admission request is due soon: it may make a
-- BLOCKED task READY. Of a paused queue only the running tasks count.
-- Parameters: backend, queues, within_seconds; only_these: FALSE takes running and due tasks of every queue.
-- Index: jobqueue_task_ready, one step per queue; jobqueue_task_running; jobqueue_task_wake_at;
--   jobqueue_admission_due. Locks: none.
-- Trap: EXISTS drops the ORDER BY that leads the planner to the index. It would read the whole table.
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
            WHERE task.backend = %(backend)s AND task.queue_name = asked.name AND task.status = 'READY'
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
        SELECT TRUE FROM jobqueue_admissionrequest
        WHERE backend = %(backend)s AND due_at <= (SELECT clock_timestamp()) + make_interval(secs => %(within_seconds)s)
        ORDER BY backend, due_at LIMIT 1
    ) IS NULL
