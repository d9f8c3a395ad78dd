-- Lock the tasks of a commit in id order, and return the columns that it decides by.
-- Parameters: backend, ids. Index: the primary key. Locks: the rows FOR NO KEY UPDATE, skipping locked ones.
SELECT id, status, claim_number, cancel_requested_at, parent_id, parent_notified_at, executor_id
FROM jobqueue_task
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[]))) AND backend = %(backend)s
ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
