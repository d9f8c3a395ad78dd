-- Insert messages for living tasks, in the caller's transaction and in the order given; a message whose dedupe key
-- was seen is left out of the answer.
-- Parameters: backend; arrays, one element per message (bodies are JSON text);
--   all_or_none: insert nothing where a receiver has ended or is unknown, instead of leaving out its messages.
-- Index: the tasks' primary key; unique jobqueue_inbox_dedupe decides the conflict.
-- Locks: the receivers FOR KEY SHARE, which blocks neither other senders nor their executors, only their deletion.
WITH given AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(task_ids)s::uuid[], %(sender_ids)s::uuid[], %(bodies)s::text[], %(eofs)s::text[], %(dedupe_keys)s::text[]
    ) WITH ORDINALITY AS given (task_id, sender_id, body, eof, dedupe_key, number)
),
receiver AS MATERIALIZED (
    SELECT id
    FROM jobqueue_task
    WHERE id = ANY(ARRAY(SELECT task_id FROM given)) AND backend = %(backend)s AND finished_at IS NULL
    ORDER BY id
    FOR KEY SHARE
)
INSERT INTO jobqueue_inboxmessage (task_id, sender_id, body, eof, dedupe_key, sent_at)
SELECT given.task_id, given.sender_id, given.body::jsonb, given.eof, given.dedupe_key, clock_timestamp()
FROM given
WHERE given.task_id IN (SELECT id FROM receiver)
    AND NOT (%(all_or_none)s AND EXISTS (SELECT FROM given WHERE task_id NOT IN (SELECT id FROM receiver)))
ORDER BY given.number
ON CONFLICT (task_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING id, task_id
