-- Find sessions that have kept executors from their work for a while: what they hold, its mode, their process, role,
-- application's name, state, and the seconds of their transaction and since their last statement began.
-- Parameters: names: of tables; executors: the name of the one whose rows are heartbeats; seconds.
-- Index: none. Locks: none, so that it answers where a table cannot be read.
-- A lock on a row shows as the lock on the table that comes with it. Executors hold that for the length of a statement.
-- Advisory locks are those of prune_guard.sql and take_deltas.sql. One that a session holds outlasts its transactions.
-- Of other roles' sessions only pg_read_all_stats sees how long their transactions last: they are shown as well.
SELECT
    COALESCE(listed.name, 'advisory lock ' || held.classid::regclass), held.mode, held.pid, session.usename::text,
    session.application_name, session.state, EXTRACT(EPOCH FROM clock_timestamp() - session.xact_start)::float8,
    EXTRACT(EPOCH FROM clock_timestamp() - session.query_start)::float8
FROM pg_locks AS held
LEFT JOIN pg_stat_activity AS session ON session.pid = held.pid
LEFT JOIN unnest(%(names)s::text[]) AS listed (name)
    ON held.locktype = 'relation' AND held.relation = to_regclass(quote_ident(listed.name))
WHERE held.granted AND held.pid IS DISTINCT FROM pg_backend_pid()
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (session.xact_start IS NULL OR session.xact_start < clock_timestamp() - make_interval(secs => %(seconds)s::float8))
    AND (
        listed.name IS NOT NULL
        AND held.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
        OR listed.name = %(executors)s::text AND held.mode IN ('RowShareLock', 'RowExclusiveLock')
        OR held.locktype = 'advisory' AND held.objsubid = 2
        AND held.classid IN (to_regclass('jobqueue_executor'), to_regclass('jobqueue_tally'))
    )
ORDER BY 1, 7 DESC NULLS FIRST
