-- Insert tasks in the caller's transaction. A row whose key a live task holds is missing from the answer.
-- Parameters: backend; aging: seconds per point of priority; rows: a JSON list of NewTask in the order of their keys,
--   without the values that are the default.
-- Index and locks: see jobqueue/migrations/sql/enqueue.sql, which has the statement.
SELECT id, enqueued_at, status
FROM jobqueue_enqueue(%(backend)s::text, %(aging)s::float8, %(rows)s::json)
