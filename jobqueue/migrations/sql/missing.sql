-- Name what the files of this folder install and the schema of the tables lacks. No rows if the tables are missing.
-- Parameters: functions: their names. Index: catalogs. Locks: none.
-- The marks are one of each kind: tables that were made from the models have neither index, statistics nor comment.
WITH tasks AS (
    SELECT pg_class.oid, relnamespace
    FROM pg_class
    WHERE pg_class.oid = to_regclass('jobqueue_task')
)
SELECT name || '()'
FROM tasks, unnest(%(functions)s::text[]) AS name
WHERE NOT EXISTS (SELECT FROM pg_proc WHERE proname = name AND pronamespace = tasks.relnamespace)
UNION ALL
SELECT 'jobqueue_task_tags'
FROM tasks
WHERE NOT EXISTS (
    SELECT FROM pg_class WHERE relname = 'jobqueue_task_tags' AND pg_class.relnamespace = tasks.relnamespace
)
UNION ALL
SELECT 'jobqueue_task_depths'
FROM tasks
WHERE NOT EXISTS (
    SELECT FROM pg_statistic_ext WHERE stxname = 'jobqueue_task_depths' AND stxnamespace = tasks.relnamespace
)
UNION ALL
SELECT 'comments'
FROM tasks
WHERE obj_description(tasks.oid, 'pg_class') IS NULL
