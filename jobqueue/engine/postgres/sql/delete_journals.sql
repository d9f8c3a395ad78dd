-- Delete the journals of some tasks that this transaction has locked.
-- Parameters: ids. Index: jobqueue_journal_name, then the primary key. Locks: the entries.
-- Trap: with `task_id = ANY(...)`, the planner may read the whole table beside a large journal. See count_unread.sql.
DELETE FROM jobqueue_journalentry
WHERE id = ANY(ARRAY(
    SELECT entry.id
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    CROSS JOIN LATERAL (
        SELECT id FROM jobqueue_journalentry WHERE task_id >= asked.id AND task_id <= asked.id OFFSET 0
    ) AS entry
))
