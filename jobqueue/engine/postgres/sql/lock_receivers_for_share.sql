-- Lock the receivers of messages FOR KEY SHARE, as an insert does. Skips rows that are locked FOR UPDATE.
-- Parameters: ids. Index: the primary key. Locks: the rows, in id order.
SELECT id FROM jobqueue_task
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[])))
ORDER BY id FOR KEY SHARE SKIP LOCKED
