-- Ask for notices that there is work.
-- Parameters: none. Locks: none.
LISTEN jobqueue
