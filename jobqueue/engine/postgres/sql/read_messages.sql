-- Read the unread messages of some tasks in order of arrival.
-- Parameters: ids; message_limit: for each task. Index: jobqueue_inbox_unread, one step per task. Locks: none.
-- Trap: with `task_id = asked.id`, the index of `id` has the order, too. Beside the large inbox of another task, the
--   planner reads all of it. See count_unread.sql.
SELECT unread.id, unread.task_id, unread.sender_id, unread.child_status, unread.body::text, unread.sent_at
FROM unnest(%(ids)s::uuid[]) AS asked (id)
CROSS JOIN LATERAL (
    SELECT message.* FROM jobqueue_inboxmessage AS message
    WHERE message.task_id >= asked.id AND message.task_id <= asked.id AND message.consumed_at IS NULL
    ORDER BY message.task_id, message.id LIMIT %(message_limit)s
) AS unread
ORDER BY unread.id
