-- Insert messages for live tasks in the caller's transaction, with ids in the given order. A message with a used dedupe
-- key is missing from the answer. A FAILED or CANCELLED parent still gets the ends of its children: it may be requeued.
-- Parameters: backend; messages: a JSON list of NewMessage, without default values; all_or_none: insert nothing if a
--   receiver has ended or is unknown. Repeats are accepted even then.
-- Index: the tasks' primary key; unique jobqueue_inbox_dedupe decides the conflict.
-- Locks: the receivers FOR KEY SHARE. This blocks their deletion, but neither other senders nor their executors.
-- Trap: rows are inserted in the order of their keys, because two senders of the same keys could deadlock otherwise.
-- Trap: with NOT EXISTS, the planner may look for repeats by reading all messages.
WITH given AS MATERIALIZED (
    SELECT * FROM ROWS FROM (
        json_to_recordset(%(messages)s::json) AS (task_id uuid, sender_id uuid, body text, child_status text, dedupe_key text)
    ) WITH ORDINALITY AS given (task_id, sender_id, body, child_status, dedupe_key, number)
),
receiver AS MATERIALIZED (
    SELECT id, finished_at FROM jobqueue_task
    WHERE id = ANY(ARRAY(SELECT task_id FROM given)) AND backend = %(backend)s AND status <> 'SUCCESSFUL'
    ORDER BY id FOR KEY SHARE
),
welcome AS MATERIALIZED (
    SELECT given.*
    FROM given JOIN receiver ON receiver.id = given.task_id
    WHERE receiver.finished_at IS NULL OR given.child_status IS NOT NULL
),
refused AS MATERIALIZED (
    SELECT given.number
    FROM given
    WHERE %(all_or_none)s AND given.number NOT IN (SELECT number FROM welcome) AND (
        SELECT seen.id
        FROM jobqueue_inboxmessage AS seen JOIN jobqueue_task AS receiver ON receiver.id = seen.task_id
        WHERE seen.task_id = given.task_id AND seen.dedupe_key = given.dedupe_key AND receiver.backend = %(backend)s
        LIMIT 1
    ) IS NULL
)
INSERT INTO jobqueue_inboxmessage (id, task_id, sender_id, body, child_status, dedupe_key, sent_at)
SELECT numbered.id, task_id, sender_id, body::jsonb, child_status, dedupe_key, clock_timestamp()
FROM (
    SELECT nextval((SELECT pg_get_serial_sequence('jobqueue_inboxmessage', 'id')::regclass)) AS id, in_order.*
    FROM (SELECT * FROM welcome WHERE NOT EXISTS (SELECT FROM refused) ORDER BY number OFFSET 0) AS in_order
    OFFSET 0
) AS numbered
ORDER BY dedupe_key NULLS FIRST, task_id, number
ON CONFLICT (task_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING id, task_id
