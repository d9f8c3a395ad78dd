-- Find the transaction that has kept dead rows of this database from being removed for the longest time.
-- Only pg_read_all_stats sees the transactions of other roles.
-- Parameters: none. Index: none. Locks: none.
SELECT pid, application_name, state, EXTRACT(EPOCH FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND xact_start IS NOT NULL
ORDER BY xact_start LIMIT 1
