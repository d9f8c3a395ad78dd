-- Name SUSPENDED tasks that have unread mail, by leaps: the next sleeper from the last mailbox on, then the next
-- mailbox from that sleeper on. So 300,000 sleepers with 10 letters among them cost about 20 steps, and so do 10
-- sleepers with 300,000 letters to others.
-- Parameters: backend, sweep_limit; rest_seconds: a sleeper whose alarm is nearer is left to it.
-- Index: jobqueue_task_suspended, jobqueue_inbox_unread. Locks: none.
WITH RECURSIVE leap AS (
    SELECT sleeper.id AS sleeper, sleeper.wake_at, mailbox.task_id AS mailbox
    FROM (
        SELECT id, wake_at FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'SUSPENDED'
        ORDER BY id LIMIT 1
    ) AS sleeper
    CROSS JOIN LATERAL (
        SELECT task_id FROM jobqueue_inboxmessage
        WHERE consumed_at IS NULL AND task_id >= sleeper.id
        ORDER BY task_id LIMIT 1
    ) AS mailbox
    UNION ALL
    SELECT sleeper.id, sleeper.wake_at, mailbox.task_id
    FROM leap
    CROSS JOIN LATERAL (
        SELECT id, wake_at FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'SUSPENDED' AND id >= leap.mailbox AND id > leap.sleeper
        ORDER BY id LIMIT 1
    ) AS sleeper
    CROSS JOIN LATERAL (
        SELECT task_id FROM jobqueue_inboxmessage
        WHERE consumed_at IS NULL AND task_id >= sleeper.id
        ORDER BY task_id LIMIT 1
    ) AS mailbox
)
SELECT sleeper
FROM leap
WHERE sleeper = mailbox AND (wake_at IS NULL OR wake_at > clock_timestamp() + make_interval(secs => %(rest_seconds)s))
LIMIT %(sweep_limit)s
