-- Return the server process that answers (not the one of the login, behind a pooler), and the default isolation.
-- Parameters: none. Index: none. Locks: none.
SELECT pg_backend_pid(), current_setting('default_transaction_isolation')
