-- Send a message to a task from SQL, in the caller's transaction: insert it, and nothing else.
-- Parameters: task_id: the receiver; from_id: the sender that the receiver sees, any id or NULL; message: its body,
--   NULL is JSON's null; notify: wake executors at the commit. The sweep finds the message within two seconds anyway.
-- Raises no_data_found (P0002) if there is no such task; object_not_in_prerequisite_state (55000) if it has ended.
-- Index: the primary key. Locks: the receiver FOR KEY SHARE, which blocks only its deletion. NOTIFY takes a database-wide
--   lock at the commit.
CREATE OR REPLACE FUNCTION {schema}.jobqueue_send_to_task(
    task_id uuid,
    from_id uuid,
    message jsonb,
    notify boolean DEFAULT false
)
RETURNS void
LANGUAGE plpgsql
SET search_path = ''
AS $$
#variable_conflict use_column
DECLARE
    receiver record;
BEGIN
    SELECT task.backend, task.finished_at INTO receiver
    FROM {schema}.jobqueue_task AS task
    WHERE task.id = jobqueue_send_to_task.task_id
    FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'There is no task % to send to.', task_id USING ERRCODE = 'no_data_found';
    ELSIF receiver.finished_at IS NOT NULL THEN
        RAISE EXCEPTION 'Task % has ended and takes no messages.', task_id
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;

    INSERT INTO {schema}.jobqueue_inboxmessage (task_id, sender_id, body, sent_at)
    VALUES (task_id, from_id, coalesce(message, 'null'), clock_timestamp());
    IF notify THEN
        PERFORM pg_notify('jobqueue', receiver.backend || ' !wake');
    END IF;
END
$$;
