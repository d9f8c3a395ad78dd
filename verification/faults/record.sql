-- Triggers that record each change of a task, each heartbeat, each message and each effect.
-- `actor` is the application_name of the process that wrote.
CREATE TABLE verification_change (
    id bigserial PRIMARY KEY, task_id uuid, before text, after text, claim_before bigint, claim_after bigint,
    attempts_before int, attempts_after int, max_attempts int, polls_before bigint, polls_after bigint,
    losses_before int, losses_after int, workers_before int, workers_after int, last_worker text,
    holder uuid, taker uuid, result text,
    actor text DEFAULT current_setting('application_name'),
    xact xid8 DEFAULT pg_current_xact_id(), at timestamptz DEFAULT clock_timestamp()
);
CREATE TABLE verification_beat (id bigserial PRIMARY KEY, executor_id uuid, name text, at timestamptz);
CREATE TABLE verification_message (
    id bigserial PRIMARY KEY, message_id bigint, task_id uuid, event text,
    actor text DEFAULT current_setting('application_name'),
    xact xid8 DEFAULT pg_current_xact_id(), at timestamptz DEFAULT clock_timestamp()
);
-- Bodies write these rows in the transaction of their outcome. `key` identifies the poll or the message.
CREATE TABLE verification_effect (
    id bigserial PRIMARY KEY, kind text, key text, task_id uuid,
    actor text DEFAULT current_setting('application_name'),
    xact xid8 DEFAULT pg_current_xact_id(), at timestamptz DEFAULT clock_timestamp()
);
-- Entries of journals, with the executor that holds the claim of the task when they are written.
CREATE TABLE verification_entry (
    id bigserial PRIMARY KEY, task_id uuid, name text, status text, holder uuid,
    actor text DEFAULT current_setting('application_name'),
    xact xid8 DEFAULT pg_current_xact_id(), at timestamptz DEFAULT clock_timestamp()
);

CREATE FUNCTION verification_note_change() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO verification_change (
        task_id, before, after, claim_before, claim_after, attempts_before, attempts_after, max_attempts,
        polls_before, polls_after, losses_before, losses_after, workers_before, workers_after, last_worker,
        holder, taker, result
    )
    VALUES (
        COALESCE(NEW.id, OLD.id), OLD.status, NEW.status, OLD.claim_number, NEW.claim_number, OLD.attempts,
        NEW.attempts, COALESCE(NEW.max_attempts, OLD.max_attempts), OLD.polls, NEW.polls, OLD.executor_losses,
        NEW.executor_losses, jsonb_array_length(OLD.worker_ids), jsonb_array_length(NEW.worker_ids),
        NEW.worker_ids ->> -1, OLD.executor_id, NEW.executor_id, NEW.return_value::text
    );
    RETURN NULL;
END $$;
CREATE TRIGGER verification_note_change AFTER INSERT OR UPDATE OR DELETE ON jobqueue_task
FOR EACH ROW EXECUTE FUNCTION verification_note_change();

CREATE FUNCTION verification_note_beat() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO verification_beat (executor_id, name, at)
    SELECT executor.id, executor.name, heartbeat.at
    FROM jobqueue_heartbeat AS heartbeat JOIN jobqueue_executor AS executor ON executor.id = heartbeat.executor_id
    WHERE heartbeat.executor_id = (to_jsonb(NEW) ->> TG_ARGV[0])::uuid;
    RETURN NULL;
END $$;
CREATE TRIGGER verification_note_beat AFTER INSERT OR UPDATE ON jobqueue_heartbeat
FOR EACH ROW EXECUTE FUNCTION verification_note_beat('executor_id');
-- The first heartbeat comes before the executor's row, with its name.
CREATE TRIGGER verification_note_first_beat AFTER INSERT ON jobqueue_executor
FOR EACH ROW EXECUTE FUNCTION verification_note_beat('id');

CREATE FUNCTION verification_note_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO verification_message (message_id, task_id, event)
    VALUES (
        COALESCE(NEW.id, OLD.id), COALESCE(NEW.task_id, OLD.task_id),
        CASE WHEN TG_OP = 'INSERT' THEN 'sent' ELSE 'consumed' END
    );
    RETURN NULL;
END $$;
CREATE TRIGGER verification_note_sent AFTER INSERT OR UPDATE OF consumed_at ON jobqueue_inboxmessage
FOR EACH ROW EXECUTE FUNCTION verification_note_message();
CREATE TRIGGER verification_note_gone AFTER DELETE ON jobqueue_inboxmessage
FOR EACH ROW WHEN (OLD.consumed_at IS NULL) EXECUTE FUNCTION verification_note_message();

CREATE FUNCTION verification_note_entry() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    INSERT INTO verification_entry (task_id, name, status, holder)
    SELECT NEW.task_id, NEW.name, NEW.status, executor_id FROM jobqueue_task WHERE jobqueue_task.id = NEW.task_id;
    RETURN NULL;
END $$;
CREATE TRIGGER verification_note_entry AFTER INSERT OR UPDATE ON jobqueue_journalentry
FOR EACH ROW EXECUTE FUNCTION verification_note_entry();

-- Simulates a full disk. While verification_full has a row, that share of the statements that write to the queue fails with
-- the error of a full disk.
CREATE TABLE verification_full (share float8 NOT NULL);
CREATE FUNCTION verification_extend() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    IF random() < (SELECT share FROM verification_full LIMIT 1) THEN
        RAISE 'could not extend file "base/5/16384": No space left on device' USING ERRCODE = 'disk_full';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER verification_extend BEFORE INSERT OR UPDATE OR DELETE ON jobqueue_task
FOR EACH STATEMENT EXECUTE FUNCTION verification_extend();
CREATE TRIGGER verification_extend BEFORE INSERT OR UPDATE OR DELETE ON jobqueue_inboxmessage
FOR EACH STATEMENT EXECUTE FUNCTION verification_extend();
CREATE TRIGGER verification_extend BEFORE INSERT OR UPDATE ON jobqueue_executor
FOR EACH STATEMENT EXECUTE FUNCTION verification_extend();
CREATE TRIGGER verification_extend BEFORE INSERT OR UPDATE ON jobqueue_heartbeat
FOR EACH STATEMENT EXECUTE FUNCTION verification_extend();
CREATE TRIGGER verification_extend BEFORE INSERT OR DELETE ON jobqueue_counterdelta
FOR EACH STATEMENT EXECUTE FUNCTION verification_extend();
