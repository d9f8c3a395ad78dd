-- Insert tasks, in the caller's transaction; a row whose key a live task holds is left out of the answer.
-- Parameters: backend; aging: seconds per point of priority; rows: a JSON list of NewTask, what has its default left
--   out, in the order of their keys.
-- Index and locks: see jobqueue/migrations/sql/enqueue.sql, which has the statement.
SELECT id, enqueued_at, status
FROM jobqueue_enqueue(%(backend)s::text, %(aging)s::float8, %(rows)s::json)
