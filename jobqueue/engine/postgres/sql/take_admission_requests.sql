-- Try to lock the keys that have due requests, and delete the requests of the locked keys.
-- Return these keys, and for each whether this session has locked it, whether a request is urgent or a planned look, and
-- whether there may be more requests. Those of the other keys stay.
-- Parameters: backend; kinds: those that this code knows; request_limit: how many requests it reads; key_limit: how many
--   keys it returns; repeats_limit: how many other due requests of the locked keys it deletes; again_seconds: if it read
--   as many requests as it may, those of keys that others have locked become due so much later, one for each key.
-- Index: jobqueue_admission_due, from its beginning, and if that fills the limit, from its end, too: one key may have
--   hundreds of thousands of requests, which must not delay those of other keys. jobqueue_admission_key.
-- Locks: the requests FOR UPDATE, skipping locked ones; for each key one of 4,096 advisory locks, until the transaction
--   ends. It never waits for a lock.
-- Why advisory locks: most keys have no row that could be locked. Two keys may have the same lock. Then two sessions
--   look at them one after the other. Why not one for each key: the server has room for some 6,000 locks.
-- Trap: tasks must be counted in a later statement, with a snapshot that is newer than the lock.
WITH oldest AS MATERIALIZED (
    SELECT id, kind, key, due_at, is_urgent, number FROM jobqueue_admissionrequest
    WHERE backend = %(backend)s AND due_at <= (SELECT clock_timestamp())
    ORDER BY backend, due_at, id LIMIT %(request_limit)s
    FOR UPDATE SKIP LOCKED
),
newest AS MATERIALIZED (
    SELECT id, kind, key, due_at, is_urgent, number FROM jobqueue_admissionrequest
    WHERE backend = %(backend)s AND due_at <= (SELECT clock_timestamp())
        AND (SELECT count(*) FROM oldest) = %(request_limit)s
    ORDER BY backend DESC, due_at DESC, id DESC LIMIT %(request_limit)s
    FOR UPDATE SKIP LOCKED
),
due AS MATERIALIZED (SELECT * FROM oldest UNION SELECT * FROM newest),
size AS MATERIALIZED (SELECT count(*) >= %(request_limit)s AS is_full FROM due),
asked AS MATERIALIZED (
    SELECT kind, key FROM due GROUP BY kind, key ORDER BY min(due_at), kind, key LIMIT %(key_limit)s
),
tried AS MATERIALIZED (
    SELECT kind, key, kind = ANY(%(kinds)s::text[]) AND pg_try_advisory_xact_lock(
        'jobqueue_admissionrequest'::regclass::oid::int, hashtext(%(backend)s || ' ' || kind || ' ' || key) & 4095
    ) AS is_locked
    FROM asked
),
repeated AS MATERIALIZED (
    SELECT more.id FROM size CROSS JOIN tried CROSS JOIN LATERAL (
        SELECT request.id FROM jobqueue_admissionrequest AS request
        WHERE request.backend = %(backend)s AND request.kind = tried.kind AND request.key = tried.key
            AND request.due_at <= (SELECT clock_timestamp())
        ORDER BY request.backend, request.kind, request.key, request.due_at LIMIT %(repeats_limit)s
        FOR UPDATE SKIP LOCKED
    ) AS more
    WHERE size.is_full AND tried.is_locked LIMIT %(repeats_limit)s
),
taken AS (
    DELETE FROM jobqueue_admissionrequest WHERE id = ANY(ARRAY(
        SELECT due.id FROM due JOIN tried USING (kind, key) CROSS JOIN size WHERE tried.is_locked OR size.is_full
        UNION SELECT id FROM repeated
    ))
    RETURNING kind, key, is_urgent OR number IS NOT NULL AS is_urgent
),
urgent AS MATERIALIZED (SELECT DISTINCT kind, key FROM taken WHERE is_urgent),
postponed AS (
    INSERT INTO jobqueue_admissionrequest (backend, kind, key, due_at, is_urgent)
    SELECT %(backend)s, kind, key, clock_timestamp() + make_interval(secs => %(again_seconds)s),
        (kind, key) IN (SELECT kind, key FROM urgent)
    FROM tried CROSS JOIN size WHERE size.is_full AND NOT tried.is_locked
)
SELECT kind, key, is_locked, (kind, key) IN (SELECT kind, key FROM urgent), is_full FROM tried CROSS JOIN size
