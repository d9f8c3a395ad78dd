-- Read settings, connection limits (-1: none) and the number of connections for `manage.py jobqueue doctor`.
-- Parameters: names. Index: none. Locks: none.
SELECT name, setting FROM pg_settings WHERE name = ANY(%(names)s)
UNION ALL
SELECT 'connections', COUNT(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'
UNION ALL
SELECT 'role_limit', rolconnlimit::text FROM pg_roles WHERE rolname = current_user
UNION ALL
SELECT 'database_limit', datconnlimit::text FROM pg_database WHERE datname = current_database()
