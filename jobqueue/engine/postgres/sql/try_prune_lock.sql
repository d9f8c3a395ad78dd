-- Return whether this transaction may prune this backend, because no other session does.
-- Parameters: backend. Index: none. Locks: an advisory lock of the executors' table and the backend, if it is free.
SELECT pg_try_advisory_xact_lock('jobqueue_executor'::regclass::oid::int, hashtext(%(backend)s))
