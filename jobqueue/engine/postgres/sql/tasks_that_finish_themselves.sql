-- Return those of some tasks that end by themselves after a cancel: it waits for a compensation or a shield in their
-- journals, or they know of it. A workflow that does not wait ends with its next run, too: its last run may have ended,
-- with its executor, between a recorded step and the compensation of the step.
-- Parameters: ids. Index: jobqueue_journal_name, and the primary key. Locks: none.
-- Trap: with `task_id = asked.id`, the planner may read the whole table beside a large journal. See count_unread.sql.
SELECT asked.id
FROM unnest(%(ids)s::uuid[]) AS asked (id)
JOIN jobqueue_task AS task ON task.id = asked.id
CROSS JOIN LATERAL (
    SELECT FROM jobqueue_journalentry AS entry
    WHERE entry.task_id >= asked.id AND entry.task_id <= asked.id AND (
        entry.kind = 'CANCEL'
        OR entry.kind IN ('COMPENSATION', 'SHIELD') AND entry.status IN ('WAITING', 'RETRYING', 'FAILED')
        OR entry.kind <> 'MEMBER' AND task.status <> 'SUSPENDED'
    )
    LIMIT 1
) AS entry
