-- Drop what depends on the tables; the tables' own migration drops the rest.
-- Parameters: {schema}. Locks: the task table SHARE UPDATE EXCLUSIVE, briefly.
DROP FUNCTION {schema}.jobqueue_enqueue;
DROP FUNCTION {schema}.jobqueue_send_to_task;
DROP FUNCTION {schema}.jobqueue_create_task;
DROP INDEX {schema}.jobqueue_task_tags;
DROP STATISTICS {schema}.jobqueue_task_depths;
