-- Share-lock the receivers of messages that can be locked without waiting.
-- Parameters: ids. Index: the primary key.
-- Locks: the rows FOR KEY SHARE, as the insert of a message does. Rows locked FOR UPDATE are left out.
SELECT id
FROM jobqueue_task
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[])))
ORDER BY id
FOR KEY SHARE SKIP LOCKED
