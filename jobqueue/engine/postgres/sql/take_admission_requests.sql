-- Take the due requests of keys that no other session looks at, lock these keys, and return them.
-- Parameters: backend; request_limit.
-- Index: jobqueue_admission_due, from its beginning. Locks: the requests FOR UPDATE, skipping locked ones; for each key
--   one of 1,024 advisory locks of the requests' table, until the transaction ends, if it is free.
-- Why advisory locks: a key needs no row, and nobody waits. Keys that share a lock are looked at one after the other.
-- Trap: tasks must be counted in a later statement, with a snapshot that is newer than the lock.
WITH due AS MATERIALIZED (
    SELECT id, kind, key FROM jobqueue_admissionrequest
    WHERE backend = %(backend)s AND due_at <= (SELECT clock_timestamp())
    ORDER BY backend, due_at, id LIMIT %(request_limit)s
    FOR UPDATE SKIP LOCKED
),
asked AS MATERIALIZED (SELECT DISTINCT kind, key FROM due),
locked AS MATERIALIZED (
    SELECT kind, key FROM asked
    WHERE pg_try_advisory_xact_lock(
        'jobqueue_admissionrequest'::regclass::oid::int, hashtext(%(backend)s || ' ' || kind || ' ' || key) & 1023
    )
),
taken AS (
    DELETE FROM jobqueue_admissionrequest
    WHERE id = ANY(ARRAY(SELECT due.id FROM due JOIN locked USING (kind, key)))
)
SELECT kind, key FROM locked
