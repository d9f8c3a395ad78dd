-- Delete the messages that a poll consumed, and count them. A message with a dedupe key keeps an empty row, so that a
-- late repeat of it inserts nothing.
-- Parameters: ids and task_ids: arrays with one element per message; a task id is the task that read the message.
-- Index: the messages' primary key.
-- Locks: the messages. No other session changes them, because their tasks are locked.
-- Trap: ids are not in the order of commits. `id <= last` would lose messages.
WITH read AS MATERIALIZED (
    SELECT message.id, message.dedupe_key
    FROM jobqueue_inboxmessage AS message
    JOIN unnest(%(ids)s::bigint[], %(task_ids)s::uuid[]) AS given (id, task_id) USING (id, task_id)
    WHERE message.id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND message.consumed_at IS NULL
),
emptied AS (
    UPDATE jobqueue_inboxmessage
    SET consumed_at = clock_timestamp(), body = NULL
    WHERE id = ANY(ARRAY(SELECT id FROM read WHERE dedupe_key IS NOT NULL))
    RETURNING id
),
deleted AS (
    DELETE FROM jobqueue_inboxmessage
    WHERE id = ANY(ARRAY(SELECT id FROM read WHERE dedupe_key IS NULL))
    RETURNING id
)
SELECT (SELECT count(*) FROM emptied) + (SELECT count(*) FROM deleted)
