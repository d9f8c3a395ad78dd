-- Return those of some settings that this session or transaction has changed since its login.
-- Parameters: names. Index: none. Locks: none.
-- Trap: pg_settings does not have the role.
SELECT name
FROM pg_settings
WHERE name = ANY(%(names)s::text[]) AND source = 'session' AND setting IS DISTINCT FROM reset_val
UNION ALL
SELECT 'role' WHERE 'role' = ANY(%(names)s::text[]) AND current_setting('role') <> 'none'
