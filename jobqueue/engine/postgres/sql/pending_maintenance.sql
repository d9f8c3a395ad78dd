-- Say in one row what upkeep may find to do: asked twice a second by executors that have nothing else to do.
-- Parameters: backend, executor_id.
-- Answer: seconds until the next alarm, NULL where none is set; whether any task is RUNNING, perhaps at an executor that was
--   lost; whether there is unread mail, and somebody asleep whose it may be; whether this executor was asked something;
--   whether suspects are READY.
-- Index: jobqueue_task_alarms, jobqueue_task_running, jobqueue_inbox_unread, jobqueue_task_suspended, the executor's primary key,
--   jobqueue_task_suspects; one entry of each. Locks: none.
-- Trap: EXISTS drops the ORDER BY that leads the planner to the index, and with it goes the whole table.
SELECT
    (
        SELECT EXTRACT(EPOCH FROM wake_at - clock_timestamp())::float8
        FROM jobqueue_task
        WHERE backend = %(backend)s AND wake_at IS NOT NULL AND status IN ('SCHEDULED', 'SUSPENDED')
        ORDER BY backend, wake_at
        LIMIT 1
    ),
    (SELECT TRUE FROM jobqueue_task WHERE status = 'RUNNING' ORDER BY executor_id LIMIT 1) IS NOT NULL,
    (SELECT TRUE FROM jobqueue_inboxmessage WHERE consumed_at IS NULL ORDER BY task_id LIMIT 1) IS NOT NULL
    AND (
        SELECT TRUE FROM jobqueue_task WHERE backend = %(backend)s AND status = 'SUSPENDED' ORDER BY backend, id LIMIT 1
    ) IS NOT NULL,
    (SELECT TRUE FROM jobqueue_executor WHERE id = %(executor_id)s AND command <> '') IS NOT NULL,
    (
        SELECT TRUE FROM jobqueue_task
        WHERE backend = %(backend)s AND status = 'READY' AND executor_losses >= 2
        ORDER BY backend, queue_name, rank, id
        LIMIT 1
    ) IS NOT NULL
