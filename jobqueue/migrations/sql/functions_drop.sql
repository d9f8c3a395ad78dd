-- Take back the functions for SQL.
-- Parameters: none. Locks: none that others wait for.
DROP FUNCTION IF EXISTS {schema}.jobqueue_send_to_task;
DROP FUNCTION IF EXISTS {schema}.jobqueue_create_task;
DROP FUNCTION IF EXISTS {schema}.jobqueue_json_problem;
