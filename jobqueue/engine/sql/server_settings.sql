-- What a server is set to, and how many connections it has now, for `manage.py jobqueue doctor`.
-- Parameters: names. Index: none. Locks: none.
SELECT name, setting FROM pg_settings WHERE name = ANY(%(names)s)
UNION ALL
SELECT 'connections', COUNT(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'
