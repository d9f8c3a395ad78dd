ALTER TABLE {schema}.jobqueue_task DROP CONSTRAINT IF EXISTS jobqueue_task_moments_of_years_1000_to_9899;

ALTER TABLE {schema}.jobqueue_inboxmessage
    DROP CONSTRAINT IF EXISTS jobqueue_inboxmessage_moments_of_years_1000_to_9899;

ALTER TABLE {schema}.jobqueue_queue DROP CONSTRAINT IF EXISTS jobqueue_queue_moments_of_years_1000_to_9899;

ALTER TABLE {schema}.jobqueue_executor DROP CONSTRAINT IF EXISTS jobqueue_executor_moments_of_years_1000_to_9899;
