-- Write the next, due and waiting ticks of schedules that this transaction has locked.
-- Parameters: ids, next_at, due_at, waiting_at: lists of the same length; times may be NULL.
-- Index: the primary key. Locks: the rows, which are locked already.
-- Trap: without the ARRAY, the planner reads the whole table for some hundred rows, or with old statistics.
UPDATE jobqueue_schedule AS schedule
SET next_at = advanced.next_at, due_at = advanced.due_at, waiting_at = advanced.waiting_at
FROM unnest(
    %(ids)s::bigint[], %(next_at)s::timestamptz[], %(due_at)s::timestamptz[], %(waiting_at)s::timestamptz[]
) AS advanced (id, next_at, due_at, waiting_at)
WHERE schedule.id = advanced.id AND schedule.id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[])))
