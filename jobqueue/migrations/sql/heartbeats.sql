-- Set the storage parameters and comments of the table of heartbeats, which a migration makes after the other tables.
-- Parameters: none. Locks: the table SHARE UPDATE EXCLUSIVE, briefly. Reads and writes continue.
-- fillfactor: each row is written again and again. Its next version fits on its page, and no index is written.
ALTER TABLE jobqueue_heartbeat SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200
);
COMMENT ON TABLE jobqueue_heartbeat IS
    'What each executor writes 3 times per HEARTBEAT_TIMEOUT (30 s). When it is older than the timeout, others take the '
    'tasks of the executor. No other session writes these rows, or has a reason to lock them: executor_id has no foreign key.';
COMMENT ON COLUMN jobqueue_heartbeat.at IS 'When it was written.';
COMMENT ON COLUMN jobqueue_heartbeat.state IS
    'RUNNING; PAUSED: claims nothing; STOPPING: stops when its tasks end; STOPPED.';
COMMENT ON COLUMN jobqueue_heartbeat.waiting_for_connections IS
    'Number of async tasks that have waited for a database connection since the last heartbeat, at most.';
COMMENT ON COLUMN jobqueue_heartbeat.problem IS
    'Why it makes no progress, such as a commit that fails again and again. NULL: it does.';
