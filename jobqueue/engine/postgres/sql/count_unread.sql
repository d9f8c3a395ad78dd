-- Count the unread messages of some tasks. A task without any has no row.
-- Parameters: ids. Index: jobqueue_inbox_unread, one step per task. Locks: none.
SELECT asked.id, unread.count
FROM unnest(%(ids)s::uuid[]) AS asked (id)
CROSS JOIN LATERAL (
    SELECT count(*) AS count FROM jobqueue_inboxmessage AS message
    WHERE message.task_id = asked.id AND message.consumed_at IS NULL
) AS unread
WHERE unread.count > 0
