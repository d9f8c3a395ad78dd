-- Return the process of the server that answers (a pooler reports another number at login), and the isolation of
-- statements outside of transactions.
-- Parameters: none. Index: none. Locks: none.
SELECT pg_backend_pid(), current_setting('default_transaction_isolation')
