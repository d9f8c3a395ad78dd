-- Have the server read that all rows keep to the constraints of moments.sql.
-- Parameters: none. May be run twice. Locks: each table SHARE UPDATE EXCLUSIVE; reads and writes go on.
ALTER TABLE {schema}.jobqueue_task
    VALIDATE CONSTRAINT jobqueue_task_moments_of_years_1000_to_9899,
    VALIDATE CONSTRAINT jobqueue_task_status;

ALTER TABLE {schema}.jobqueue_inboxmessage
    VALIDATE CONSTRAINT jobqueue_inboxmessage_moments_of_years_1000_to_9899;

ALTER TABLE {schema}.jobqueue_queue
    VALIDATE CONSTRAINT jobqueue_queue_moments_of_years_1000_to_9899;

ALTER TABLE {schema}.jobqueue_executor
    VALIDATE CONSTRAINT jobqueue_executor_moments_of_years_1000_to_9899;
