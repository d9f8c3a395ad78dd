-- Take away messages that were read, and count them; one with a dedupe key keeps its row, emptied, so that a late repeat
-- of it stays harmless.
-- Parameters: arrays, one element per message: ids, and task_ids, the tasks that read them.
-- Index: the messages' primary key.
-- Locks: the messages, which nobody else touches: their tasks are locked.
-- Trap: ids are no order of commits; `id <= last` would lose mail.
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
