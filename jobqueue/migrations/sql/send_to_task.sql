-- Send a message to a task from SQL: it is inserted, no more, in the caller's transaction.
-- Parameters: task_id: the receiver; from_id: the sender that the receiver sees, any id or NULL; message: its body,
--   NULL is JSON's null; notify: have executors look for mail at the commit, which takes a database-wide lock there.
--   Without it the sweep finds the message within a second or two of the commit.
-- Raises no_data_found (P0002) where there is no such task; object_not_in_prerequisite_state (55000) where it has
--   ended; invalid_parameter_value (22023) for a message that Python would refuse.
-- Index: the tasks' primary key.
-- Locks: the receiver FOR KEY SHARE, which blocks neither other senders nor its executor, only its deletion.
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
    body CONSTANT jsonb := coalesce(message, 'null');
    problem CONSTANT text := {schema}.jobqueue_json_problem(ARRAY['message'], ARRAY[body], 64);
    backend_of_receiver text;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'jobqueue_send_to_task: %', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;

    SELECT receiver.backend INTO backend_of_receiver
    FROM {schema}.jobqueue_task AS receiver
    WHERE receiver.id = jobqueue_send_to_task.task_id AND receiver.finished_at IS NULL
    FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM 1 FROM {schema}.jobqueue_task AS receiver WHERE receiver.id = jobqueue_send_to_task.task_id;
        IF FOUND THEN
            RAISE EXCEPTION 'Task % has ended and takes no messages.', task_id
                USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        RAISE EXCEPTION 'There is no task % to send to.', task_id USING ERRCODE = 'no_data_found';
    END IF;

    INSERT INTO {schema}.jobqueue_inboxmessage (task_id, sender_id, body, sent_at)
    VALUES (task_id, from_id, body, clock_timestamp());
    IF notify THEN
        PERFORM pg_notify('jobqueue', backend_of_receiver || ' !wake');
    END IF;
END
$$;
