-- Read the unread messages of some tasks in order of arrival, up to a limit for each task.
-- Parameters: ids; mail_limit: messages per task. Index: jobqueue_inbox_unread, one step per task. Locks: none.
SELECT mail.id, mail.task_id, mail.sender_id, mail.child_status, mail.body::text, mail.sent_at
FROM unnest(%(ids)s::uuid[]) AS asked (id)
CROSS JOIN LATERAL (
    SELECT message.*
    FROM jobqueue_inboxmessage AS message
    WHERE message.task_id = asked.id AND message.consumed_at IS NULL
    ORDER BY message.task_id, message.id
    LIMIT %(mail_limit)s
) AS mail
ORDER BY mail.id
