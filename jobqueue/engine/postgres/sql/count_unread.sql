-- Count the unread messages of some tasks. A task without any has no row.
-- Parameters: ids. Index: jobqueue_inbox_unread, one step per task. Locks: none.
-- Trap: with `task_id = asked.id`, the statistics of a table with the inbox of one task let the planner read the whole
--   table for each task. It has no statistics for a range between unknown ends.
SELECT asked.id, unread.count
FROM unnest(%(ids)s::uuid[]) AS asked (id)
CROSS JOIN LATERAL (
    SELECT count(*) AS count FROM jobqueue_inboxmessage AS message
    WHERE message.task_id >= asked.id AND message.task_id <= asked.id AND message.consumed_at IS NULL
) AS unread
WHERE unread.count > 0
