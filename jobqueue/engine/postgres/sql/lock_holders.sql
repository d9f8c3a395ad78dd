-- Find the sessions that stop executors by their locks, and the age of their transaction and of their statement.
-- Parameters: names: tables; with_rows: the tables of which row locks count, too; seconds: the least age of a transaction.
-- Index: none. Locks: none, so that it answers even if a table cannot be read.
-- A row lock shows as the table lock that comes with it. Executors hold that lock only for the length of a statement.
-- Advisory locks are those of try_prune_lock.sql and take_counter_deltas.sql, and may outlast a transaction.
-- Only pg_read_all_stats sees the age of other roles' transactions. Sessions of unknown age are listed, too.
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
        OR listed.name = ANY(%(with_rows)s::text[]) AND held.mode IN ('RowShareLock', 'RowExclusiveLock')
        OR held.locktype = 'advisory' AND held.objsubid = 2
        AND held.classid IN (to_regclass('jobqueue_executor'), to_regclass('jobqueue_counter'))
    )
ORDER BY 1, 7 DESC NULLS FIRST
