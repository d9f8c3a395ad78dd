-- Return how full the server's notification queue is. Asking also frees what every session has read: a full queue stayed
-- full until then (PostgreSQL 18).
-- Parameters: none. Index: none. Locks: none.
SELECT pg_notification_queue_usage()
