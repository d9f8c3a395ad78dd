-- Receive notifications of new work.
-- Parameters: none. Index: none. Locks: none.
LISTEN jobqueue
