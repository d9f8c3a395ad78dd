-- Return in one row what maintenance may find to do. Idle executors ask twice a second.
-- Parameters: backend, executor_id.
-- Answer: seconds until the next wake_at, or NULL; the same of the next tick of a schedule, and of the next look at a
--   limit; whether there are waiting ticks, RUNNING tasks, SUSPENDED tasks and unread messages,
--   a command for this executor, READY tasks in isolation, tasks that wait for code.
-- Index: jobqueue_task_wake_at, jobqueue_task_running, jobqueue_inbox_unread, jobqueue_task_suspended,
--   jobqueue_task_isolated, jobqueue_task_awaiting_code, jobqueue_schedule_due, jobqueue_schedule_waiting, jobqueue_admission_due, the executors' primary key; one entry of each. Locks: none.
-- Trap: EXISTS drops the ORDER BY that leads the planner to the index. It then reads the whole table.
SELECT
    (
        SELECT EXTRACT(EPOCH FROM wake_at - clock_timestamp())::float8 FROM jobqueue_task
        WHERE backend = %(backend)s AND wake_at IS NOT NULL AND status IN ('SCHEDULED', 'SUSPENDED')
        ORDER BY backend, wake_at LIMIT 1
    ),
    (
        SELECT EXTRACT(EPOCH FROM due_at - clock_timestamp())::float8 FROM jobqueue_schedule
        WHERE backend = %(backend)s AND due_at IS NOT NULL ORDER BY backend, due_at LIMIT 1
    ),
    (
        SELECT EXTRACT(EPOCH FROM due_at - clock_timestamp())::float8 FROM jobqueue_admissionrequest
        WHERE backend = %(backend)s ORDER BY backend, due_at LIMIT 1
    ),
    (
        SELECT TRUE FROM jobqueue_schedule
        WHERE backend = %(backend)s AND waiting_at IS NOT NULL ORDER BY backend, id LIMIT 1
    ) IS NOT NULL,
    (SELECT TRUE FROM jobqueue_task WHERE status = 'RUNNING' ORDER BY executor_id LIMIT 1) IS NOT NULL,
    (SELECT TRUE FROM jobqueue_inboxmessage WHERE consumed_at IS NULL ORDER BY task_id LIMIT 1) IS NOT NULL
    AND (
        SELECT TRUE FROM jobqueue_task WHERE backend = %(backend)s AND status = 'SUSPENDED' ORDER BY backend, id LIMIT 1
    ) IS NOT NULL,
    (SELECT TRUE FROM jobqueue_executor WHERE id = %(executor_id)s AND command <> '') IS NOT NULL,
    (
        SELECT TRUE FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'READY' AND executor_losses >= {isolation_losses}
        ORDER BY backend, queue_name, rank, id LIMIT 1
    ) IS NOT NULL,
    (
        SELECT TRUE FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'AWAITING_CODE'
        ORDER BY backend, queue_name, task_type LIMIT 1
    ) IS NOT NULL
