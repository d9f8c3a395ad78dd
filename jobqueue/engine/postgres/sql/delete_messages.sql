-- Delete the messages of tasks that are pruned. No other session changes them after their task has ended.
-- Parameters: ids: of tasks that this transaction has locked. Index: jobqueue_inbox_task. Locks: the messages.
-- Trap: if the planner can count the ids, it may read the whole table. It cannot count a sub-select.
DELETE FROM jobqueue_inboxmessage
WHERE task_id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[])))
