-- Whether this transaction may delete what is old: nobody else is at it for this backend.
-- Parameters: backend. Index: none.
-- Locks: an advisory one of executors and the backend, until the transaction ends and without waiting for it.
SELECT pg_try_advisory_xact_lock('jobqueue_executor'::regclass::oid::int, hashtext(%(backend)s))
