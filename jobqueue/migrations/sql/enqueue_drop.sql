-- Take back the function that inserts tasks.
-- Parameters: none. Locks: none that others wait for.
DROP FUNCTION IF EXISTS {schema}.jobqueue_enqueue;
