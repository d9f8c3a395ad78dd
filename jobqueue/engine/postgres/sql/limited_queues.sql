-- Name the queues of a backend that have a max_running.
-- Parameters: backend. Index: none; a table of a few rows. Locks: none.
SELECT name FROM jobqueue_queue WHERE backend = %(backend)s AND max_running IS NOT NULL
