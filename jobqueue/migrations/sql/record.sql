-- Write entries of a workflow's journal, in the caller's transaction. Return whether a cancel of the task
-- was requested; NULL, and write nothing, if the claim is lost.
-- Parameters: task_id; claim_number, executor_id: of the claim, NULL if the caller has locked the row of a claim that it
--   holds; entries: a JSON list of Entry without default values.
-- Index: the tasks' primary key; unique jobqueue_journal_name decides the conflict.
-- Locks: the task FOR NO KEY UPDATE. It waits for a rescue of the task, and then finds the claim gone.
-- Why a function: as jobqueue_enqueue. Bodies run on connections of the site, which prepare no statements.
-- Why the row is read by its id alone: the planner may prefer the index of running tasks, which then has dead rows.
CREATE OR REPLACE FUNCTION {schema}.jobqueue_record(
    task_id uuid, claim_number bigint, executor_id uuid, entries json
)
RETURNS boolean
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    claimed record;
    is_cancel_requested boolean := FALSE;
BEGIN
    IF jobqueue_record.claim_number IS NOT NULL THEN
        SELECT task.status::text AS status, task.claim_number AS number, task.executor_id AS holder,
            task.cancel_requested_at AS asked_at INTO claimed
        FROM {schema}.jobqueue_task AS task
        WHERE task.id = jobqueue_record.task_id
        FOR NO KEY UPDATE;
        IF NOT FOUND OR claimed.status <> 'RUNNING'::text OR claimed.number <> jobqueue_record.claim_number
            OR claimed.holder IS NULL OR claimed.holder <> jobqueue_record.executor_id THEN
            RETURN NULL;
        END IF;
        is_cancel_requested := claimed.asked_at IS NOT NULL;
    END IF;
    INSERT INTO {schema}.jobqueue_journalentry (
        task_id, name, kind, status, arguments, digest, value, error, attempts, child_id, started_at, finished_at, due_at
    )
    SELECT
        jobqueue_record.task_id, name, kind, status, arguments::jsonb, digest, value::jsonb, error::jsonb,
        COALESCE(attempts, 0), child_id,
        COALESCE(started_at, now - make_interval(secs => COALESCE(run_seconds, 0::float8))),
        CASE WHEN status = 'WAITING'::text OR status = 'RETRYING'::text THEN finished_at ELSE COALESCE(finished_at, now) END,
        COALESCE(due_at, now + make_interval(secs => due_seconds))
    FROM (SELECT clock_timestamp() AS now) AS clock, ROWS FROM (
        json_to_recordset(jobqueue_record.entries) AS (
            name text, kind text, status text, arguments text, digest text, value text, error text, attempts int,
            child_id uuid, started_at timestamptz, finished_at timestamptz, due_at timestamptz, run_seconds float8,
            due_seconds float8
        )
    ) WITH ORDINALITY AS given (
        name, kind, status, arguments, digest, value, error, attempts, child_id, started_at, finished_at, due_at,
        run_seconds, due_seconds, number
    )
    ORDER BY number
    ON CONFLICT (task_id, name) DO UPDATE SET
        kind = EXCLUDED.kind, status = EXCLUDED.status, arguments = EXCLUDED.arguments, digest = EXCLUDED.digest,
        value = EXCLUDED.value, error = EXCLUDED.error, attempts = EXCLUDED.attempts, child_id = EXCLUDED.child_id,
        started_at = EXCLUDED.started_at, finished_at = EXCLUDED.finished_at, due_at = EXCLUDED.due_at;
    RETURN is_cancel_requested;
END
$$;
COMMENT ON FUNCTION {schema}.jobqueue_record IS 'Write entries of a workflow''s journal that django-jobqueue''s Python has made.';
