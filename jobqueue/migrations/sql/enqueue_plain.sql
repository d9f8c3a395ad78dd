-- Insert plain tasks that Python has validated, in the caller's transaction: one task, or those of one call, which differ
-- in their ids and arguments only. enqueue() calls this function for tasks without a key, a limit, a later start, an
-- expiry, tags, metadata, a parent or a schedule. jobqueue_enqueue inserts the others.
-- Parameters: shared: the columns that all tasks share, in the order of the last SELECT; ids; args, kwargs: a JSON text
--   for each id, one a line, as no JSON text has a line break.
-- Returns when they were enqueued. Raises P0001 if a trigger of the site leaves tasks out. Index: none. Locks: the new rows.
-- Why a function, and no SET search_path: as jobqueue_enqueue.
-- Why one parameter for eight columns: each parameter costs as much as four expressions.
-- Why shared[1] in the statements: in each transaction, PostgreSQL prepares each variable of a function again.
-- Why two statements: without a function that returns rows, the insert of one task takes a fifth less.
CREATE OR REPLACE FUNCTION {schema}.jobqueue_enqueue_plain(shared text[], ids uuid[], args text, kwargs text)
RETURNS timestamptz
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    inserted int;
BEGIN
    IF pg_catalog.cardinality(ids) = 1 THEN
        INSERT INTO {schema}.jobqueue_task (
            id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, status, claim_number,
            worker_ids, attempts, max_attempts, polls, executor_losses, errors, enqueued_at, pool
        )
        VALUES (
            ids[1], shared[1], shared[2], shared[4], shared[5]::smallint, now - make_interval(secs => shared[6]::float8),
            args::jsonb, kwargs::jsonb, shared[8]::jsonb, '{}', 'READY', 0, '[]', 0, shared[7]::int, 0, 0, '[]', now,
            shared[3]
        );
    ELSE
        INSERT INTO {schema}.jobqueue_task (
            id, backend, queue_name, task_type, priority, rank, args, kwargs, options, metadata, status, claim_number,
            worker_ids, attempts, max_attempts, polls, executor_losses, errors, enqueued_at, pool
        )
        SELECT
            pg_catalog.unnest(ids), backend, queue_name, task_type, priority, rank,
            pg_catalog.unnest(string_to_array(args, E'\n'))::jsonb,
            pg_catalog.unnest(string_to_array(kwargs, E'\n'))::jsonb,
            options, '{}', 'READY', 0, '[]', 0, max_attempts, 0, 0, '[]', now, pool
        FROM (SELECT
            shared[1] AS backend, shared[2] AS queue_name, shared[3] AS pool, shared[4] AS task_type,
            shared[5]::smallint AS priority, now - make_interval(secs => shared[6]::float8) AS rank,
            shared[7]::int AS max_attempts, shared[8]::jsonb AS options
            OFFSET 0
        ) AS of_call;
    END IF;
    GET DIAGNOSTICS inserted = ROW_COUNT;
    IF inserted < pg_catalog.cardinality(ids) THEN
        RAISE EXCEPTION 'A trigger of jobqueue_task left out % of % new tasks.', pg_catalog.cardinality(ids) - inserted,
            pg_catalog.cardinality(ids);
    END IF;
    INSERT INTO {schema}.jobqueue_counterdelta (backend, queue_name, task_type, at, submitted)
    VALUES (shared[1], shared[2], shared[4], now, inserted);
    RETURN now;
END
$$;
COMMENT ON FUNCTION {schema}.jobqueue_enqueue_plain IS
    'As jobqueue_enqueue, for tasks without a key, a limit, a later start or tags. From SQL, call jobqueue_create_task.';
