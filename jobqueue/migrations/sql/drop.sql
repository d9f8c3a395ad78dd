-- Drop what depends on the tables; the tables' own migration drops the rest.
-- Parameters: {schema}. Locks: the task table SHARE UPDATE EXCLUSIVE, briefly.
DROP FUNCTION IF EXISTS {schema}.jobqueue_enqueue;
DROP FUNCTION IF EXISTS {schema}.jobqueue_enqueue_plain;
DROP FUNCTION IF EXISTS {schema}.jobqueue_record;
DROP FUNCTION IF EXISTS {schema}.jobqueue_send_to_task;
DROP FUNCTION IF EXISTS {schema}.jobqueue_create_task;
DROP INDEX IF EXISTS {schema}.jobqueue_task_tags;
DROP STATISTICS IF EXISTS {schema}.jobqueue_task_depths;
