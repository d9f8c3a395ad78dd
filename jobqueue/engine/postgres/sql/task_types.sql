-- What some tasks run; one of another backend, or that is gone, has no row.
-- Parameters: backend, ids. Index: the primary key. Locks: none.
SELECT id, task_type
FROM jobqueue_task
WHERE id = ANY(%(ids)s::uuid[]) AND backend = %(backend)s
