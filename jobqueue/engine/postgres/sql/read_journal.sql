-- Read the journal of a task, and whether its cancel was requested. Without entries there is one row, without a name.
-- Parameters: task_id. Index: the tasks' primary key; jobqueue_journal_name. Locks: none.
-- Trap: with `task_id = task.id`, the planner may read the whole table beside a large journal. See count_unread.sql.
SELECT
    task.cancel_requested_at IS NOT NULL, entry.name, entry.kind, entry.status, entry.arguments::text, entry.digest,
    entry.value::text, entry.error::text, entry.attempts, entry.child_id, entry.started_at, entry.finished_at,
    entry.due_at
FROM jobqueue_task AS task
LEFT JOIN LATERAL (
    SELECT * FROM jobqueue_journalentry AS entry WHERE entry.task_id >= task.id AND entry.task_id <= task.id OFFSET 0
) AS entry ON TRUE
WHERE task.id = %(task_id)s
ORDER BY entry.id
