-- Lock the tasks that a commit changes, and return the columns that it decides by.
-- Parameters: backend, ids. Index: the primary key.
-- Locks: the rows in id order FOR NO KEY UPDATE. Rows that other sessions have locked are missing from the answer.
SELECT id, status, claim_number, cancel_requested_at, parent_id, parent_notified_at, executor_id
FROM jobqueue_task
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[]))) AND backend = %(backend)s
ORDER BY id
FOR NO KEY UPDATE SKIP LOCKED
