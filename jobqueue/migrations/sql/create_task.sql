-- Create a task from SQL, in the caller's transaction; it runs like one that Python enqueued.
-- Parameters: as those of enqueue() and using() in Python. SQL does not know how the task was declared, so queue_name
--   and priority are what is given here, else the defaults; max_attempts and timeout, where NULL, are as declared, which
--   the executor looks up. task_id: NULL makes one. aging: the backend's
--   OPTIONS["AGING"]. notify: have an idle executor look at the commit, which takes a database-wide lock there.
--   parent_id: a living task of the same backend, whose inbox gets the new task's end. It should be an actor: which tasks
--   are functions, and read no mail, SQL does not know.
-- Returns the id. If a live task holds the key, nothing is inserted, and the id is that of the live task. That task may
--   have ended when the answer arrives.
-- Raises invalid_parameter_value (22023) for what Python refuses, and for a parent of another backend; no_data_found
--   (P0002) where there is no such parent; object_not_in_prerequisite_state (55000) where it has ended; unique_violation (23505) when the id is taken;
--   serialization_failure (40001) when the holder of the key cannot be seen: begin again.
-- Index: unique jobqueue_task_key decides the conflict; the primary key finds the parent.
-- Locks: the new row, of the task and of the tally; the parent FOR KEY SHARE, which keeps it from being pruned and blocks nobody else; waits for an open transaction that created a task with the same key.
CREATE OR REPLACE FUNCTION {schema}.jobqueue_create_task(
    task_id uuid,
    task_type text,
    parent_id uuid DEFAULT NULL,
    args jsonb DEFAULT '[]',
    kwargs jsonb DEFAULT '{}',
    queue_name text DEFAULT 'default',
    priority numeric DEFAULT 0,
    backend text DEFAULT 'default',
    run_after timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    max_attempts numeric DEFAULT NULL,
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
    shown_max_attempts CONSTANT integer := 4;  -- of a task as declared; what holds is in options, or in the code
    key_tries CONSTANT integer := 3;
    first_moment CONSTANT timestamptz := '1970-01-01 00:00:00+00';
    end_of_moments CONSTANT timestamptz := '9001-01-01 00:00:00+00';
    created_at CONSTANT timestamptz := clock_timestamp();
    is_due CONSTANT boolean := run_after IS NULL OR run_after <= created_at;
    options CONSTANT jsonb := jsonb_strip_nulls(jsonb_build_object(
        'max_attempts', trunc(max_attempts), 'timeout', extract(epoch FROM timeout)
    ));
    holder_id uuid;
    milliseconds bytea;
    random_bytes bytea;
    problem text;
    parent record;
BEGIN
    problem := CASE
        WHEN task_type IS NULL OR length(task_type) NOT BETWEEN 1 AND 500 THEN
            format('task_type must have 1 to 500 characters, not %s', coalesce(length(task_type)::text, 'NULL'))
        WHEN queue_name IS NULL OR length(queue_name) NOT BETWEEN 1 AND 128 THEN
            format('queue_name must have 1 to 128 characters, not %s', coalesce(length(queue_name)::text, 'NULL'))
        WHEN backend IS NULL OR length(backend) NOT BETWEEN 1 AND 64 THEN
            format(
                'backend must be an alias in TASKS, of 1 to 64 characters, not %s',
                coalesce(length(backend)::text, 'NULL')
            )
        WHEN length(key) NOT BETWEEN 1 AND 255 THEN
            format('key must be NULL or have 1 to 255 characters, not %s', length(key))
        WHEN parent_id = task_id THEN 'parent_id must be another task than task_id'
        WHEN jsonb_typeof(args) IS DISTINCT FROM 'array' THEN
            format(
                'args must be a JSON array, say jsonb_build_array(...), not %s', coalesce(jsonb_typeof(args), 'NULL')
            )
        WHEN jsonb_typeof(kwargs) IS DISTINCT FROM 'object' THEN
            format(
                'kwargs must be a JSON object, say jsonb_build_object(...), not %s',
                coalesce(jsonb_typeof(kwargs), 'NULL')
            )
        WHEN jsonb_typeof(metadata) IS DISTINCT FROM 'object' THEN
            format('metadata must be a JSON object, not %s', coalesce(jsonb_typeof(metadata), 'NULL'))
        WHEN priority IS NULL OR priority NOT BETWEEN -100 AND 100 OR priority <> trunc(priority) THEN
            format('priority must be a whole number from -100 to 100, not %s', coalesce(priority::text, 'NULL'))
        WHEN max_attempts NOT BETWEEN 1 AND 1000000 OR max_attempts <> trunc(max_attempts) THEN
            format('max_attempts must be NULL or a whole number from 1 to 1000000, not %s', max_attempts)
        WHEN NOT (run_after >= first_moment AND run_after < end_of_moments) THEN
            format('run_after must lie between the years 1970 and 9000, not at %s', run_after)
        WHEN NOT (expires_at >= first_moment AND expires_at < end_of_moments) THEN
            format('expires_at must lie between the years 1970 and 9000, not at %s', expires_at)
        WHEN aging IS NULL OR extract(epoch FROM aging) NOT BETWEEN 0 AND 86400 THEN
            format('aging must lie between 0 and a day, not be %L', aging)
        WHEN extract(epoch FROM timeout) NOT BETWEEN 0.001 AND 31536000 THEN
            format('timeout must be NULL or lie between a millisecond and 365 days, not be %L', timeout)
        -- The elements of args and kwargs may be 64 levels deep, and the array or object around them is one more.
        ELSE coalesce(
            {schema}.jobqueue_json_problem(ARRAY['args', 'kwargs'], ARRAY[args, kwargs], 65),
            {schema}.jobqueue_json_problem(ARRAY['metadata'], ARRAY[metadata], 64)
        )
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'jobqueue_create_task: %', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF parent_id IS NOT NULL THEN
        SELECT task.backend, task.finished_at INTO parent
        FROM {schema}.jobqueue_task AS task
        WHERE task.id = jobqueue_create_task.parent_id
        FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'jobqueue_create_task: there is no task % to be the parent', parent_id
                USING ERRCODE = 'no_data_found';
        ELSIF parent.backend <> backend THEN
            RAISE EXCEPTION
                'jobqueue_create_task: a child lives in its parent''s backend; % is of %, not of %',
                parent_id, quote_literal(parent.backend), quote_literal(backend)
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF parent.finished_at IS NOT NULL THEN
            RAISE EXCEPTION 'jobqueue_create_task: task % has ended and has no more children', parent_id
                USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
    END IF;

    IF task_id IS NULL THEN  -- a UUIDv7, as Python makes them
        milliseconds := substring(int8send(trunc(extract(epoch FROM created_at) * 1000)::bigint) FROM 3);
        random_bytes := overlay(uuid_send(gen_random_uuid()) PLACING milliseconds FROM 1 FOR 6);
        task_id := encode(set_bit(set_bit(random_bytes, 52, 1), 53, 1), 'hex')::uuid;
    END IF;

    FOR try IN 1 .. key_tries LOOP  -- once, unless the conflicting task is deleted at once
        INSERT INTO {schema}.jobqueue_task (
            id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, key, parent_id,
            status, wake_at, expires_at, claim_number, worker_ids, attempts, max_attempts, polls, executor_losses, errors,
            enqueued_at
        )
        VALUES (
            task_id, backend, queue_name, task_type, priority, created_at - aging * priority::float8, args, kwargs,
            options, metadata, key, parent_id,
            CASE WHEN is_due THEN 'READY' ELSE 'SCHEDULED' END, CASE WHEN NOT is_due THEN run_after END,
            expires_at, 0, '[]', 0, coalesce(max_attempts, shown_max_attempts), 0, 0, '[]', created_at
        )
        ON CONFLICT (backend, key) WHERE finished_at IS NULL AND key IS NOT NULL DO NOTHING;
        IF FOUND THEN
            INSERT INTO {schema}.jobqueue_counterdelta (backend, queue_name, task_type, at, submitted)
            VALUES (backend, queue_name, task_type, created_at, 1);
            IF notify AND is_due THEN
                PERFORM pg_notify('jobqueue', backend || ' ' || queue_name);
            END IF;
            RETURN task_id;
        END IF;

        -- A later statement than the insert, so that it sees the task which the insert has waited for.
        SELECT holder.id INTO holder_id
        FROM {schema}.jobqueue_task AS holder
        WHERE holder.backend = jobqueue_create_task.backend AND holder.key = jobqueue_create_task.key
            AND holder.finished_at IS NULL;
        IF NOT FOUND THEN
            -- It has ended since. The last holder held the key during this call: see engine/sql/key_holders.sql.
            SELECT holder.id INTO holder_id
            FROM (
                SELECT task.id, task.finished_at FROM {schema}.jobqueue_task AS task
                WHERE task.backend = jobqueue_create_task.backend AND task.key = jobqueue_create_task.key
                    AND task.finished_at IS NULL
                UNION ALL
                SELECT task.id, task.finished_at FROM {schema}.jobqueue_task AS task
                WHERE task.backend = jobqueue_create_task.backend AND task.key = jobqueue_create_task.key
                    AND task.finished_at IS NOT NULL
            ) AS holder
            ORDER BY holder.finished_at DESC NULLS FIRST
            LIMIT 1;
        END IF;
        IF FOUND THEN
            RETURN holder_id;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'jobqueue_create_task: the key % is held by a task that this transaction cannot see',
        quote_literal(key) USING ERRCODE = 'serialization_failure', HINT = 'Begin the transaction again.';
END
$$;
