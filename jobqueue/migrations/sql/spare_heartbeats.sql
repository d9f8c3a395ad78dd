-- Explain the heartbeats that are written beside an executor's row.
-- Parameters: none. Locks: the table SHARE UPDATE EXCLUSIVE, for a moment; it is new.
COMMENT ON TABLE {schema}.jobqueue_spareheartbeat IS
$$A heartbeat of an executor whose row in jobqueue_executor another session keeps locked. Empty as a rule.

An executor that cannot lock its row inserts its heartbeat here, and lives as long as the newer of both says. Rows go after
a day.$$;
COMMENT ON COLUMN {schema}.jobqueue_spareheartbeat.id IS
    'A number without meaning.';
COMMENT ON COLUMN {schema}.jobqueue_spareheartbeat.executor_id IS
    'The executor: jobqueue_executor.id. No foreign key: checking it would wait for the lock.';
COMMENT ON COLUMN {schema}.jobqueue_spareheartbeat.at IS
    'When it beat.';
