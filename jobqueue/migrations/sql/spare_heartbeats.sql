-- Document the table of spare heartbeats.
-- Parameters: none. Locks: the table SHARE UPDATE EXCLUSIVE, for a moment; it is new.
COMMENT ON TABLE {schema}.jobqueue_spareheartbeat IS
$$Heartbeats of executors whose row in jobqueue_executor another session keeps locked. Usually empty.

An executor that cannot lock its row inserts its heartbeat here. The newer of its two heartbeats counts. Rows are deleted
after a day.$$;
COMMENT ON COLUMN {schema}.jobqueue_spareheartbeat.id IS
    'A number without meaning.';
COMMENT ON COLUMN {schema}.jobqueue_spareheartbeat.executor_id IS
    'The executor: jobqueue_executor.id. Not a foreign key, because checking one would wait for the lock.';
COMMENT ON COLUMN {schema}.jobqueue_spareheartbeat.at IS
    'The time of the heartbeat.';
