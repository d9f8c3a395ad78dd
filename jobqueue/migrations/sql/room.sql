-- Leave room on the page of a new task for its versions: claimed, and ended. A version on another page takes two more
-- records in the WAL, and is written there whole: 16 % of the WAL of a drain, and 8 % of its CPU, with fillfactor = 85.
-- Ended tasks take 1.6 times as much of the disk.
-- Parameters: none. Locks: the table SHARE UPDATE EXCLUSIVE, briefly. Reads and writes continue. Pages stay as they are.
ALTER TABLE jobqueue_task SET (fillfactor = 55)
