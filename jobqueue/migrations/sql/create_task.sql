-- Create a task from SQL, in the caller's transaction. It runs like one that Python enqueued.
-- Parameters: those of enqueue() and using() in Python. SQL does not know how the task was declared: queue_name and
--   priority have fixed defaults, and the executor looks up max_attempts and timeout where they are NULL. task_id: NULL
--   makes one. aging: OPTIONS["AGING"] of the backend. notify: wake an idle executor at the commit.
--   parent_id: an unfinished actor of the same backend, which gets a message when the new task ends.
-- Returns the id of the new task, or of the unfinished task that has the key. That one may have ended since.
-- Raises invalid_parameter_value (22023) for names and keys that are empty or too long, for a priority, max_attempts or
--   timeout out of range, and for arguments and times that Python could not read; no_data_found (P0002) if
--   the parent is missing or has ended; unique_violation (23505) if the id is taken; serialization_failure (40001) if
--   the transaction's snapshot does not show the task that has the key. The executor reports all other mistakes.
-- Index: unique jobqueue_task_key, the primary key. Locks: the new rows; the parent FOR KEY SHARE, so that it is not pruned.
-- Waits for an open transaction that created a task with the same key. NOTIFY takes a database-wide lock at the commit.
CREATE OR REPLACE FUNCTION {schema}.jobqueue_create_task(
    task_id uuid,
    task_type text,
    parent_id uuid DEFAULT NULL,
    args jsonb DEFAULT '[]',
    kwargs jsonb DEFAULT '{}',
    queue_name text DEFAULT 'default',
    priority integer DEFAULT 0,
    backend text DEFAULT 'default',
    run_after timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    key text DEFAULT NULL,
    metadata jsonb DEFAULT '{}',
    aging interval DEFAULT '60 seconds',
    timeout interval DEFAULT NULL,
    notify boolean DEFAULT false
)
RETURNS uuid
LANGUAGE plpgsql
SET search_path = ''
AS $$
#variable_conflict use_column
DECLARE
    shown_max_attempts CONSTANT integer := 4;  -- what pages show; the executor goes by options and code
    readable_times CONSTANT tstzrange := '[1970-01-01 00:00:00+00,9001-01-01 00:00:00+00)';
    created_at CONSTANT timestamptz := clock_timestamp();
    rank CONSTANT timestamptz := created_at - aging * priority;
    is_due CONSTANT boolean := run_after IS NULL OR run_after <= created_at;
    options CONSTANT jsonb := jsonb_strip_nulls(jsonb_build_object(
        'max_attempts', max_attempts, 'timeout', extract(epoch FROM timeout)
    ));
    problem CONSTANT text := CASE
        WHEN length(task_type) NOT BETWEEN 1 AND 500 THEN
            format('task_type must be a text of 1 to 500 characters, not %L', left(task_type, 200))
        WHEN starts_with(task_type, 'jobqueue.') THEN
            format('task_type must be a task of the site, not %L', task_type)
        WHEN length(queue_name) NOT BETWEEN 1 AND 128 THEN
            format('queue_name must be a text of 1 to 128 characters, not %L', left(queue_name, 200))
        WHEN length(backend) NOT BETWEEN 1 AND 64 THEN
            format('backend must be a text of 1 to 64 characters, not %L', left(backend, 200))
        WHEN length(key) NOT BETWEEN 1 AND 255 THEN
            format('key must be a text of 1 to 255 characters, not %L', left(key, 200))
        WHEN priority NOT BETWEEN -100 AND 100 THEN
            format('priority must be a whole number between -100 and 100, not %s', priority)
        WHEN max_attempts NOT BETWEEN 1 AND 1000000 THEN
            format('max_attempts must be a whole number between 1 and 1000000, not %s', max_attempts)
        WHEN timeout NOT BETWEEN interval '1 ms' AND interval '365 days' THEN
            format('timeout must be above 0 and a year at most, not %L', timeout)
        WHEN jsonb_typeof(args) <> 'array' THEN 'args must be a JSON array: use jsonb_build_array(...)'
        WHEN jsonb_typeof(kwargs) <> 'object' THEN 'kwargs must be a JSON object: use jsonb_build_object(...)'
        WHEN jsonb_typeof(metadata) <> 'object' THEN 'metadata must be a JSON object: use jsonb_build_object(...)'
        WHEN NOT readable_times @> ALL (ARRAY[run_after, expires_at, rank]) THEN
            'run_after, expires_at and the rank (now - priority * aging) must lie between the years 1970 and 9000'
    END;
    holder_id uuid;
    milliseconds bytea;
    random_bytes bytea;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'jobqueue_create_task: %', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF parent_id IS NOT NULL THEN
        PERFORM 1 FROM {schema}.jobqueue_task AS parent
        WHERE parent.id = jobqueue_create_task.parent_id AND parent.backend = jobqueue_create_task.backend
            AND parent.finished_at IS NULL
        FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'jobqueue_create_task: parent % is not an unfinished task of backend %',
                parent_id, quote_literal(backend) USING ERRCODE = 'no_data_found';
        END IF;
    END IF;

    IF task_id IS NULL THEN  -- a UUIDv7, as Python makes them
        milliseconds := substring(int8send(trunc(extract(epoch FROM created_at) * 1000)::bigint) FROM 3);
        random_bytes := overlay(uuid_send(gen_random_uuid()) PLACING milliseconds FROM 1 FOR 6);
        task_id := encode(set_bit(set_bit(random_bytes, 52, 1), 53, 1), 'hex')::uuid;
    END IF;

    LOOP  -- repeats only if the task that had the key ended before the SELECT below
        INSERT INTO {schema}.jobqueue_task (
            id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, key, parent_id,
            status, wake_at, expires_at, claim_number, worker_ids, attempts, max_attempts, polls, executor_losses,
            errors, enqueued_at
        )
        VALUES (
            task_id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, key, parent_id,
            CASE WHEN is_due THEN 'READY' ELSE 'SCHEDULED' END, CASE WHEN NOT is_due THEN run_after END,
            expires_at, 0, '[]', 0, coalesce(max_attempts, shown_max_attempts), 0, 0, '[]', created_at
        )
        ON CONFLICT (backend, key) WHERE finished_at IS NULL AND key IS NOT NULL AND taken_over_by_id IS NULL DO NOTHING;
        IF FOUND THEN
            INSERT INTO {schema}.jobqueue_counterdelta (backend, queue_name, task_type, at, submitted)
            VALUES (backend, queue_name, task_type, created_at, 1);
            IF notify AND is_due THEN
                PERFORM pg_notify('jobqueue', backend || ' ' || queue_name);
            END IF;
            RETURN task_id;
        END IF;

        -- A later statement than the INSERT: its snapshot shows the task that the INSERT waited for.
        SELECT holder.id INTO holder_id
        FROM {schema}.jobqueue_task AS holder
        WHERE holder.backend = jobqueue_create_task.backend AND holder.key = jobqueue_create_task.key
            AND holder.finished_at IS NULL AND holder.taken_over_by_id IS NULL;
        IF FOUND THEN
            RETURN holder_id;
        END IF;
    END LOOP;
END
$$;
