-- Insert tasks in the caller's transaction. A row with the key of a live task is missing from the answer.
-- Parameters: backend; aging: seconds per point of priority; rows: a JSON list of NewTask in the order of their keys.
-- Index, locks: those of the function, in jobqueue/migrations/sql/enqueue.sql.
SELECT id, enqueued_at, status
FROM jobqueue_enqueue(%(backend)s::text, %(aging)s::float8, %(rows)s::json)
