-- Insert a message for a living task, in the caller's transaction; no row comes back when the task has ended or
-- is unknown, or when the dedupe key was seen.
-- Parameters: task_id, sender_id, body (JSON text), eof, dedupe_key. Index: the task's primary key.
-- Locks: the receiver FOR KEY SHARE, which blocks neither other senders nor its executor, only its deletion.
INSERT INTO jobqueue_inboxmessage (task_id, sender_id, body, eof, dedupe_key, sent_at)
SELECT task.id, %(sender_id)s, %(body)s::jsonb, %(eof)s, %(dedupe_key)s, clock_timestamp()
FROM jobqueue_task AS task
WHERE task.id = %(task_id)s AND task.finished_at IS NULL
FOR KEY SHARE
ON CONFLICT (task_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING id
