-- Which session of the server answers: a pooler gives its clients other numbers when they log in.
-- Parameters: none. Index: none. Locks: none.
SELECT pg_backend_pid()
