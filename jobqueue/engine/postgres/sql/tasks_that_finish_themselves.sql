-- Return those of some tasks that end by themselves after a cancel: it waits for a compensation or a shield in their
-- journals, or they know of it.
-- Parameters: ids. Index: jobqueue_journal_name. Locks: none.
-- Trap: with `task_id = asked.id`, the planner may read the whole table beside a large journal. See count_unread.sql.
SELECT asked.id
FROM unnest(%(ids)s::uuid[]) AS asked (id)
CROSS JOIN LATERAL (
    SELECT FROM jobqueue_journalentry AS entry
    WHERE entry.task_id >= asked.id AND entry.task_id <= asked.id AND (
        entry.kind = 'CANCEL'
        OR entry.kind IN ('COMPENSATION', 'SHIELD') AND entry.status IN ('WAITING', 'RETRYING', 'FAILED')
    )
    LIMIT 1
) AS entry
