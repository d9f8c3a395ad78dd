-- Explain the queue in psql: \dt+ shows the comments of tables, \d+ of columns, \df+ of functions.
-- Parameters: {schema}, of the tables. Locks: each table SHARE UPDATE EXCLUSIVE, briefly. Reads and writes continue.
-- Columns with a self-explanatory name have no comment.
COMMENT ON TABLE jobqueue_task IS
$$One task of the queue (django-jobqueue): what to run, its state, and its result.

Executors (manage.py run_executors) claim rows, run the task's code, and commit the outcome in one transaction. The row
is the truth. Notifications (LISTEN jobqueue) only save time: polling finds work that a lost notification announced.

 create --> READY --claim--> RUNNING --done--> SUCCESSFUL
   |- with a limit --> BLOCKED --admitted--> READY
   |                            |- error, attempts left --> SCHEDULED --due--> READY
   `- run later --> SCHEDULED   |- actor waits --> SUSPENDED --message, or wake_at--> READY
                                |- executor lost, or task released --> READY
                                |- no code for it, or none that takes its arguments --> AWAITING_CODE --code--> READY
                                |- error, no attempts left --> FAILED   (requeue: FAILED, CANCELLED --> READY)
                                `- cancelled --> CANCELLED

Claim: an executor takes the READY rows with the lowest rank, FOR NO KEY UPDATE SKIP LOCKED. The rank is the time when a
task became ready, minus priority x AGING (60 seconds by default). It does not change while the task waits, so every
task is reached.
Fencing: each claim adds 1 to claim_number, and a commit must present the number of its claim. An executor that lost its
claim cannot change the row.
Lost executors: heartbeats are stored in jobqueue_heartbeat. Others take the tasks of an executor that stays silent.
Messages: sending inserts into jobqueue_inboxmessage. The commit of a SUSPENDED task locks its row, then looks for
unread messages. Once a second an executor makes SUSPENDED tasks with unread messages READY.

From SQL, in your own transaction or trigger:
  SELECT jobqueue_create_task(NULL, 'shop.tasks.send_receipt', args => jsonb_build_array(42));
  SELECT jobqueue_send_to_task('<id of a task>', NULL, '{"paid": true}');
Reading is harmless: SELECT status, count(*) FROM jobqueue_task GROUP BY status;
Do not change rows by hand. Executors hold some of them in memory, and a status must agree with finished_at, wake_at,
claimed_at and executor_id. Write no infinite time, and none after the year 9000: Python cannot read it, and claims fail
until the row is corrected. All times are of the database's clock.$$;
COMMENT ON COLUMN jobqueue_task.backend IS 'Alias in the TASKS setting. Each backend has its own queues and executors.';
COMMENT ON COLUMN jobqueue_task.pool IS 'Where executors run it: threads, or async for an async def function.';
COMMENT ON COLUMN jobqueue_task.task_type IS 'Registered name of the task, usually a dotted path.';
COMMENT ON COLUMN jobqueue_task.priority IS '-100 to 100, higher first. One point is worth AGING seconds of waiting.';
COMMENT ON COLUMN jobqueue_task.rank IS 'Claim order, lowest first: time of becoming ready minus priority x AGING.';
COMMENT ON COLUMN jobqueue_task.options IS 'Options of this task that differ from its declaration: JSON object.';
COMMENT ON COLUMN jobqueue_task.tags IS 'Words by which people find the task: JSON array. NULL without any.';
COMMENT ON COLUMN jobqueue_task.inner_state IS 'State of an actor between its polls, or the checkpoint of a function. NULL before the first.';
COMMENT ON COLUMN jobqueue_task.key IS 'Unique among unfinished tasks of the backend. Also an address for messages.';
COMMENT ON COLUMN jobqueue_task.idempotency_key IS 'Digest of owner and idempotency key. Unique among all tasks.';
COMMENT ON COLUMN jobqueue_task.idempotency_digest IS 'Digest of the request that used the idempotency key.';
COMMENT ON COLUMN jobqueue_task.concurrency_key IS 'Tasks with the same key count together: name of the limit, colon, key.';
COMMENT ON COLUMN jobqueue_task.concurrency_limit IS 'How many tasks may count for the key at once.';
COMMENT ON COLUMN jobqueue_task.counts_while_waiting IS 'Counts for its concurrency key although it is not READY or RUNNING.';
COMMENT ON COLUMN jobqueue_task.rate_key IS 'Starts with the same key count together: name of the limit, colon, key.';
COMMENT ON COLUMN jobqueue_task.rate_limit IS 'How many starts are allowed in any rate_seconds.';
COMMENT ON COLUMN jobqueue_task.parent_id IS 'Task that spawned this one. Not a foreign key: it may be pruned first.';
COMMENT ON COLUMN jobqueue_task.wake_at IS
'When a SCHEDULED or SUSPENDED task becomes READY, or an AWAITING_CODE task fails. NULL in other states.';
COMMENT ON COLUMN jobqueue_task.expires_at IS 'A task that has not started by then ends FAILED with Expired.';
COMMENT ON COLUMN jobqueue_task.claimed_at IS 'When the task was claimed, while RUNNING.';
COMMENT ON COLUMN jobqueue_task.claim_number IS 'Fencing token: number of claims. A commit with another number fails.';
COMMENT ON COLUMN jobqueue_task.worker_ids IS 'Executors of the attempts, newest last: JSON array, at most 100.';
COMMENT ON COLUMN jobqueue_task.attempts IS 'Failed attempts of this poll, or of the last one.';
COMMENT ON COLUMN jobqueue_task.max_attempts IS 'Attempts before FAILED. Options and code override it.';
COMMENT ON COLUMN jobqueue_task.polls IS 'Successful polls. A function has at most one.';
COMMENT ON COLUMN jobqueue_task.unread_polls IS 'Polls in a row that left messages unread.';
COMMENT ON COLUMN jobqueue_task.stale_polls IS 'Polls in a row that ended with Stale.';
COMMENT ON COLUMN jobqueue_task.timed_out IS 'Whether the timeout of a SUSPENDED task woke it.';
COMMENT ON COLUMN jobqueue_task.timeout_at IS 'End of a wait, if wake_at is earlier to look at unread messages again.';
COMMENT ON COLUMN jobqueue_task.executor_losses IS 'Executors lost while they ran this task. From 2 on it runs alone.';
COMMENT ON COLUMN jobqueue_task.errors IS 'Errors of attempts, newest last: JSON array, at most 20.';
COMMENT ON COLUMN jobqueue_task.history IS
'Newest polls, releases and requeues that no other column keeps: a line of JSON for each, at most 1,200 characters.';
COMMENT ON COLUMN jobqueue_task.cause IS 'Of the last attempt, if it failed: a digest of task, exception class and message.';
COMMENT ON COLUMN jobqueue_task.parent_notified_at IS 'When the parent got the only message of this task''s end.';
COMMENT ON TABLE jobqueue_limit IS
'A number of a limit by key that people have set. It replaces the one in code. A key with a colon at its end: all keys.';
COMMENT ON TABLE jobqueue_admissionrequest IS
'A request that executors look at a key. Each change after which a BLOCKED task may run inserts one.';
COMMENT ON TABLE jobqueue_ratestart IS
'A start of a body that a rate counts.';
COMMENT ON TABLE jobqueue_keyreservation IS
'A unique key that unique_for keeps taken until expires_at, even if the task ends earlier.';
COMMENT ON TABLE jobqueue_inboxmessage IS
$$A message to a task. The sender is outside, another task, or a child that has ended.

jobqueue_send_to_task inserts it with the receiver locked FOR KEY SHARE, which blocks neither other senders nor the
receiver's executor. Unread messages make a SUSPENDED receiver READY within two seconds. The receiver's commit deletes
the messages that its poll consumed. Messages to an ended task stay unread until the task is pruned.$$;
COMMENT ON COLUMN jobqueue_inboxmessage.id IS 'Order of arrival. Messages of one sender keep their order.';
COMMENT ON COLUMN jobqueue_inboxmessage.sender_id IS 'Task that sent it, or any id or NULL from outside.';
COMMENT ON COLUMN jobqueue_inboxmessage.body IS 'Content: JSON. From an ended child, its return value or its error.';
COMMENT ON COLUMN jobqueue_inboxmessage.child_status IS 'Final status of an ended child; NULL for other messages.';
COMMENT ON COLUMN jobqueue_inboxmessage.dedupe_key IS 'Unique per receiver. The row stays, emptied, once consumed.';
COMMENT ON COLUMN jobqueue_inboxmessage.consumed_at IS 'When a message with a dedupe_key was consumed. NULL: unread.';
COMMENT ON TABLE jobqueue_taskprogress IS
'The last progress that the body of a task has reported with context.progress(). claim_number: of its attempt.';
COMMENT ON TABLE jobqueue_tasklog IS
'The newest lines that the body of a task has logged in one attempt or poll, of the task''s newest 20.';
COMMENT ON COLUMN jobqueue_tasklog.claim_number IS 'The claim_number of the task in the attempt or poll.';
COMMENT ON COLUMN jobqueue_tasklog.dropped IS 'Number of older lines of it that are not kept.';
COMMENT ON COLUMN jobqueue_tasklog.lines IS
'JSON: a list of [seconds since 1970, level, name of the logger, message], oldest first.';
COMMENT ON TABLE jobqueue_executor IS
    'A process that runs tasks (manage.py run_executors), or ran them recently. It writes this row when it starts.';
COMMENT ON COLUMN jobqueue_executor.queues IS 'Queues that it serves: JSON array. An empty one is every queue.';
COMMENT ON COLUMN jobqueue_executor.queue_limits IS 'Limits of queues in this process: JSON object.';
COMMENT ON COLUMN jobqueue_executor.task_types IS 'Names of the tasks that its code declares: JSON array.';
COMMENT ON COLUMN jobqueue_executor.slots IS 'Number of threads for tasks.';
COMMENT ON COLUMN jobqueue_executor.command IS 'PAUSE, RESUME or STOP. The executor empties it within about a second.';
COMMENT ON TABLE jobqueue_queue IS 'Pauses and limits of queues. A queue without a row has neither.';
COMMENT ON COLUMN jobqueue_queue.resume_at IS 'When the pause ends by itself. NULL: never.';
COMMENT ON COLUMN jobqueue_queue.max_running IS 'How many of its tasks may run at once, in all executors. NULL: no limit.';
COMMENT ON TABLE jobqueue_counter IS
$$Counters by backend, queue and task type, of all time.

Executors add the rows of jobqueue_counterdelta every few seconds. Pruning tasks does not change the counters.
submitted: tasks created. completed: tasks that ended SUCCESSFUL. failed: attempts that failed. retries: failed attempts
that another attempt follows. dead: tasks that ended FAILED. lost: executor losses. ticks_enqueued: ticks of schedules
that became a task. ticks_overlap, ticks_paused, ticks_missed, ticks_key: ticks that were skipped, by reason.
wait_seconds: sum of the times from READY to the claim. run_seconds: sum of the times that attempts ran.
lateness_seconds: sum of the times from the moment when a tick was due to its task. waits, runs, lateness: histograms of
these times, JSON arrays.$$;
COMMENT ON TABLE jobqueue_counterperiod IS
$$Counters of a minute, kept for a day, or of an hour, kept for 31 days. The pages of the admin read them.

scope: backend, queue or task. name: of the queue or the task type; empty for a whole backend. attempts: how many ended.
The other columns are those of jobqueue_counter.$$;
COMMENT ON TABLE jobqueue_counterdelta IS
    'What a transaction adds to the counters. Rows are only inserted: no transaction waits for another. NULL is 0. '
    'attempts: how many fell into wait_bucket and run_bucket, which are indexes into waits and runs. '
    'ticks_enqueued: how many fell into lateness_bucket.';

COMMENT ON FUNCTION {schema}.jobqueue_create_task IS
$$Create a task in the caller's transaction. Return its id, or the id of the unfinished task that has the key.

task_type: the registered name. task_id: NULL makes one. Other parameters replace defaults: SQL does not know how the
task was declared. aging: OPTIONS["AGING"] of the backend. notify: wake an idle executor at the commit; NOTIFY takes a
database-wide lock then.
Raises 22023 for arguments or times that Python could not read, P0002 if the parent is missing or has ended, 23505 if
the id is taken, 40001 if the transaction cannot see the task that has the key: repeat the transaction.$$;
COMMENT ON FUNCTION {schema}.jobqueue_send_to_task IS
$$Send a message to a task in the caller's transaction. It only inserts a row, so the transaction may stay open.

from_id: any id, or NULL. notify: wake executors at the commit; NOTIFY takes a database-wide lock then.
Raises P0002 if there is no such task, 55000 if it has ended.$$;
COMMENT ON FUNCTION {schema}.jobqueue_enqueue IS
    'Insert tasks that django-jobqueue''s Python has validated. From SQL, call jobqueue_create_task.';
COMMENT ON TABLE jobqueue_schedule IS
$$A periodic task. When due_at has come, an executor locks the row, enqueues the task of next_at, adds a row to
jobqueue_scheduletick and moves next_at, in one transaction. Do not change rows by hand.$$;
COMMENT ON COLUMN jobqueue_task.schedule_id IS 'Schedule that enqueued the task. Not a foreign key: no lock of its row.';
COMMENT ON TABLE jobqueue_scheduletick IS
'A tick that became a task (task_id), or count consecutive ticks that were skipped for a reason.';
COMMENT ON TABLE jobqueue_scheduledeployment IS
'A set of schedules that some code declared. The one applied last is in force.';
