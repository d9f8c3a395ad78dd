-- Delete the messages of tasks that are pruned.
-- Parameters: ids: of the tasks, locked by this transaction. Index: jobqueue_inbox_task.
-- Locks: the messages, which nobody else touches once their task has ended.
-- Trap: the planner, when it sees how many ids there are and believes that there are few receivers, reads the whole
--   table; behind the sub-select it cannot count them.
DELETE FROM jobqueue_inboxmessage
WHERE task_id = ANY(ARRAY(SELECT unnest(%(ids)s::uuid[])))
