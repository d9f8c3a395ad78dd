-- Which session of the server answers (a pooler gives its clients other numbers when they log in), and what isolation its
-- statements have that no transaction is around.
-- Parameters: none. Index: none. Locks: none.
SELECT pg_backend_pid(), current_setting('default_transaction_isolation')
