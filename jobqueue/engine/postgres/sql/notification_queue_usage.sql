-- Return how full the server's notification queue is. In PostgreSQL 18, only this call frees what all sessions have read.
-- Parameters: none. Index: none. Locks: none.
SELECT pg_notification_queue_usage()
