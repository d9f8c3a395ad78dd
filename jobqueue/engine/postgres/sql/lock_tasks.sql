-- Lock the tasks that a commit works on, and say what it looks at of them.
-- Parameters: backend, ids. Index: the primary key.
-- Locks: the rows in id order FOR NO KEY UPDATE, skipping rows that somebody else holds: those are missing from the answer.
SELECT id, status, claim_number, cancel_requested_at, parent_id, parent_notified_at, executor_id
FROM jobqueue_task
WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[]))) AND backend = %(backend)s
ORDER BY id
FOR NO KEY UPDATE SKIP LOCKED
