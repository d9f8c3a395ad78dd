-- Find SUSPENDED tasks with unread messages. The search alternates between the next receiver and the next SUSPENDED task:
-- 300,000 suspended tasks with 10 messages cost about 20 steps, and so does the reverse.
-- If a task left messages unread, it wakes by its wake_at, and is returned only for newer messages.
-- Why the backend is compared in a pair, and again outside: if the planner expects few rows, as of an equality, it may
--   sort all tasks of another index for each step.
-- Parameters: backend, sweep_limit. Index: jobqueue_task_suspended, jobqueue_inbox_unread. Locks: none.
WITH RECURSIVE leap AS (
    SELECT sleeper.id AS sleeper, sleeper.unread_polls, sleeper.last_attempted_at, mailbox.task_id AS mailbox
    FROM (
        SELECT backend, id, unread_polls, last_attempted_at FROM jobqueue_task
        WHERE (backend, id) >= (%(backend)s, '00000000-0000-0000-0000-000000000000'::uuid) AND status = 'SUSPENDED'
        ORDER BY backend, id LIMIT 1
    ) AS sleeper
    CROSS JOIN LATERAL (
        SELECT task_id FROM jobqueue_inboxmessage
        WHERE consumed_at IS NULL AND task_id >= sleeper.id ORDER BY task_id LIMIT 1
    ) AS mailbox
    WHERE sleeper.backend = %(backend)s
    UNION ALL
    SELECT sleeper.id, sleeper.unread_polls, sleeper.last_attempted_at, mailbox.task_id
    FROM leap CROSS JOIN LATERAL (
        SELECT backend, id, unread_polls, last_attempted_at FROM jobqueue_task
        WHERE (backend, id) >= (%(backend)s, leap.mailbox) AND id > leap.sleeper AND status = 'SUSPENDED'
        ORDER BY backend, id LIMIT 1
    ) AS sleeper
    CROSS JOIN LATERAL (
        SELECT task_id FROM jobqueue_inboxmessage
        WHERE consumed_at IS NULL AND task_id >= sleeper.id ORDER BY task_id LIMIT 1
    ) AS mailbox
    WHERE sleeper.backend = %(backend)s
)
SELECT sleeper FROM leap
WHERE sleeper = mailbox AND (
    unread_polls = 0 OR (
        SELECT sent_at FROM jobqueue_inboxmessage
        WHERE task_id = sleeper AND consumed_at IS NULL ORDER BY task_id DESC, id DESC LIMIT 1
    ) > last_attempted_at
)
LIMIT %(sweep_limit)s
