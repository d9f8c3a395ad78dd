-- Return the tasks that an executor holds, and whether their cancel was requested.
-- Parameters: executor_id. Index: jobqueue_task_running. Locks: none.
SELECT id, claim_number, cancel_requested_at IS NOT NULL FROM jobqueue_task
WHERE executor_id = %(executor_id)s AND status = 'RUNNING' ORDER BY executor_id
