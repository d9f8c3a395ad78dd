-- Delete the messages that polls consumed, and count them. One with a dedupe key stays, emptied, to stop late repeats.
-- Parameters: ids, task_ids: each message and the task that read it; keep: all stay, with their bodies.
-- Index: the messages' primary key.
-- Locks: the messages. No other session changes them, because their tasks are locked.
-- Trap: ids are not in the order of commits. `id <= last` would lose messages.
WITH read AS MATERIALIZED (
    SELECT message.id, message.dedupe_key
    FROM jobqueue_inboxmessage AS message
    JOIN unnest(%(ids)s::bigint[], %(task_ids)s::uuid[]) AS given (id, task_id) USING (id, task_id)
    WHERE message.id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND message.consumed_at IS NULL
),
kept AS (
    UPDATE jobqueue_inboxmessage
    SET consumed_at = clock_timestamp(), body = CASE WHEN %(keep)s::bool THEN body END
    WHERE id = ANY(ARRAY(SELECT id FROM read WHERE dedupe_key IS NOT NULL OR %(keep)s::bool))
    RETURNING id
),
deleted AS (
    DELETE FROM jobqueue_inboxmessage
    WHERE id = ANY(ARRAY(SELECT id FROM read WHERE dedupe_key IS NULL AND NOT %(keep)s::bool))
    RETURNING id
)
SELECT (SELECT count(*) FROM kept) + (SELECT count(*) FROM deleted)
