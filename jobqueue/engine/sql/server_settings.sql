-- What a server is set to, and how many connections it has now, for `manage.py jobqueue doctor`. The limits of the role
-- and of the database are -1 where they have none.
-- Parameters: names. Index: none. Locks: none.
SELECT name, setting FROM pg_settings WHERE name = ANY(%(names)s)
UNION ALL
SELECT 'connections', COUNT(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'
UNION ALL
SELECT 'role_limit', rolconnlimit::text FROM pg_roles WHERE rolname = current_user
UNION ALL
SELECT 'database_limit', datconnlimit::text FROM pg_database WHERE datname = current_database()
