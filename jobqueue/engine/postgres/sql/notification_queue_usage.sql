-- Say which part of the server's queue of notices is taken, and let go of what everybody has read: after the last one
-- who was behind has left, a full queue stays full until somebody asks (seen on PostgreSQL 18).
-- Parameters: none. Index: none. Locks: none.
SELECT pg_notification_queue_usage()
