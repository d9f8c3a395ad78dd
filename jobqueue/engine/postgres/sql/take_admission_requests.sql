-- Try to lock the keys that have due requests, and delete the requests of the locked keys.
-- Return all these keys, and for each whether this session has locked it. The requests of the other keys stay.
-- Parameters: backend; request_limit.
-- Index: jobqueue_admission_due, from its beginning. Locks: the requests FOR UPDATE, skipping locked ones; for each key
--   one of 1,024 advisory locks, until the transaction ends. It never waits for a lock.
-- Why advisory locks: most keys have no row that could be locked. Two keys may have the same lock. Then two sessions
--   look at them one after the other.
-- Trap: tasks must be counted in a later statement, with a snapshot that is newer than the lock.
WITH due AS MATERIALIZED (
    SELECT id, kind, key FROM jobqueue_admissionrequest
    WHERE backend = %(backend)s AND due_at <= (SELECT clock_timestamp())
    ORDER BY backend, due_at, id LIMIT %(request_limit)s
    FOR UPDATE SKIP LOCKED
),
asked AS MATERIALIZED (SELECT DISTINCT kind, key FROM due),
tried AS MATERIALIZED (
    SELECT kind, key, pg_try_advisory_xact_lock(
        'jobqueue_admissionrequest'::regclass::oid::int, hashtext(%(backend)s || ' ' || kind || ' ' || key) & 1023
    ) AS is_locked
    FROM asked
),
taken AS (
    DELETE FROM jobqueue_admissionrequest
    WHERE id = ANY(ARRAY(SELECT due.id FROM due JOIN tried USING (kind, key) WHERE tried.is_locked))
)
SELECT kind, key, is_locked FROM tried
