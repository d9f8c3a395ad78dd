-- Write entries of the journals of some tasks that this transaction has locked. Index, locks: see jobqueue_record().
-- Parameters: ids; entries: for each task, a JSON list of Entry without default values.
SELECT jobqueue_record(given.task_id, NULL, NULL, given.entries::json)
FROM unnest(%(ids)s::uuid[], %(entries)s::text[]) AS given (task_id, entries)
