-- Explain the queue to somebody who has only psql: \dt+ shows what is said of tables, \d+ of columns, \df+ of functions.
-- Parameters: none. Locks: each table SHARE UPDATE EXCLUSIVE, for a moment; reads and writes go on.
-- A column without a comment fails tests/edges/test_sql_functions.py.
COMMENT ON TABLE {schema}.jobqueue_task IS
$$One task of the queue (django-jobqueue): what to run, where it stands, and how it ended.

A task is one row. An executor (manage.py run_executors) claims rows, runs their body, and commits the outcome in one
transaction. The row is the truth; notices (LISTEN jobqueue) only save time, and polling finds what they missed.

 create --> READY --claim--> RUNNING --done--> SUCCESSFUL
   |                            |- error, attempts left --> SCHEDULED --due--> READY
   `- later --> SCHEDULED       |- an actor waits --> SUSPENDED --a message, or its wake_at--> READY
                                |- executor lost, or handed back --> READY
                                |- error, none left --> FAILED       (requeue: FAILED, CANCELLED --> READY)
                                `- cancelled --> CANCELLED

Claim: an executor takes the READY rows of a queue with the lowest rank, FOR NO KEY UPDATE SKIP LOCKED. The rank is the
moment a task became ready less priority x AGING (a minute, say): constant while the task waits, and nothing starves.
Fencing: each claim adds one to claim_number, and whoever commits must present the number of his claim. So an executor
that was given up for lost changes nothing.
Lost: an executor's signs of life stand on its own row (jobqueue_executor.heartbeat), not here. Others take the RUNNING
tasks of one that has gone silent.
Messages: to send is to insert into jobqueue_inboxmessage. Whoever commits a task as SUSPENDED locks it first and then
looks for unread mail; and once a second some executor makes SUSPENDED tasks with unread mail READY.

From SQL, in a transaction of yours, from triggers too:
  SELECT jobqueue_create_task(NULL, 'shop.tasks.send_receipt', args => jsonb_build_array(42));
  SELECT jobqueue_send_to_task('<id of a task>', NULL, '{"paid": true}');
To look is harmless: SELECT status, count(*) FROM jobqueue_task GROUP BY status;
Change no row by hand: executors hold some in memory, and a status without its companions (finished_at, wake_at,
heartbeat, executor_id) is a task that nobody finds.$$;
COMMENT ON COLUMN {schema}.jobqueue_task.id IS
    'A UUIDv7, made before the insert, so that a parent knows its child.';
COMMENT ON COLUMN {schema}.jobqueue_task.backend IS
    'Alias in the site''s TASKS setting; each is a set of queues of its own, with executors of its own.';
COMMENT ON COLUMN {schema}.jobqueue_task.queue_name IS
    'Queue within the backend; executors may serve some only, and jobqueue_queue may say that it is paused.';
COMMENT ON COLUMN {schema}.jobqueue_task.task_type IS
    'Name under which the site''s code has registered the task: a dotted path, or a name that was given. An '
    'executor that does not know it hands the task back for some seconds.';
COMMENT ON COLUMN {schema}.jobqueue_task.priority IS
    '-100 to 100, higher first; a point is worth AGING seconds of waiting.';
COMMENT ON COLUMN {schema}.jobqueue_task.rank IS
    'Order of claiming, lowest first: the moment it became ready less priority x AGING. Constant while it waits; '
    'kept when it is handed back or rescued.';
COMMENT ON COLUMN {schema}.jobqueue_task.args IS
    'Positional arguments, a JSON array; never changed.';
COMMENT ON COLUMN {schema}.jobqueue_task.kwargs IS
    'Keyword arguments, a JSON object; never changed.';
COMMENT ON COLUMN {schema}.jobqueue_task.options IS
    'What was asked for this task beside its declaration: max_attempts, timeout (seconds), backoff. {} as a rule.';
COMMENT ON COLUMN {schema}.jobqueue_task.metadata IS
    'JSON object of the site''s own; bodies may change it.';
COMMENT ON COLUMN {schema}.jobqueue_task.inner_state IS
    'Memory of an actor between its polls, written by its commits only; NULL before the first, and for functions.';
COMMENT ON COLUMN {schema}.jobqueue_task.key IS
    'Unique among the live tasks of the backend (finished_at IS NULL), and an address to send to. Creating a '
    'second one gives the first.';
COMMENT ON COLUMN {schema}.jobqueue_task.parent_id IS
    'The task that spawned it, or NULL. It is sent one message when this task ends. No foreign key: it may be '
    'pruned before.';
COMMENT ON COLUMN {schema}.jobqueue_task.status IS
    'READY to be claimed; SCHEDULED for wake_at; RUNNING with an executor; SUSPENDED until a message or wake_at; '
    'or ended: SUCCESSFUL, FAILED, CANCELLED.';
COMMENT ON COLUMN {schema}.jobqueue_task.wake_at IS
    'When a SCHEDULED task, or a SUSPENDED one that sleeps, becomes READY; else NULL.';
COMMENT ON COLUMN {schema}.jobqueue_task.expires_at IS
    'Not to be started after this moment: then it ends FAILED with Expired. NULL is never.';
COMMENT ON COLUMN {schema}.jobqueue_task.claimed_at IS
    'When it was claimed, while RUNNING; else NULL. Later signs of life stand on the executor''s row.';
COMMENT ON COLUMN {schema}.jobqueue_task.claim_number IS
    'The fencing token: how often it was claimed, never reset. A commit with another number changes nothing.';
COMMENT ON COLUMN {schema}.jobqueue_task.executor_id IS
    'Who holds it while RUNNING: jobqueue_executor.id; else NULL.';
COMMENT ON COLUMN {schema}.jobqueue_task.worker_ids IS
    'Executors that have started it, one entry per attempt, newest last, at most 100.';
COMMENT ON COLUMN {schema}.jobqueue_task.attempts IS
    'Failed tries of the current poll; 0 again after a good one. Lost executors and shutdowns do not count.';
COMMENT ON COLUMN {schema}.jobqueue_task.max_attempts IS
    'Tries of one poll, the first included, before it ends FAILED, as known when it was created. What holds is in options, '
    'else as declared.';
COMMENT ON COLUMN {schema}.jobqueue_task.polls IS
    'Good polls so far: 1 for a function that has ended well, more for an actor.';
COMMENT ON COLUMN {schema}.jobqueue_task.idle_polls IS
    'Polls in a row that left their mail unread, or found stale what they had seen; each waits twice as long as the '
    'one before.';
COMMENT ON COLUMN {schema}.jobqueue_task.timed_out IS
    'Whether the alarm of a SUSPENDED task woke it, for its next poll to see; cleared by a good poll.';
COMMENT ON COLUMN {schema}.jobqueue_task.executor_losses IS
    'Executors that were lost while they held it. From 2 on it runs alone in its process; at MAX_EXECUTOR_LOSSES it ends '
    'FAILED.';
COMMENT ON COLUMN {schema}.jobqueue_task.cancel_requested_at IS
    'When somebody asked to cancel it; its executor sees it with the next heartbeat.';
COMMENT ON COLUMN {schema}.jobqueue_task.errors IS
    'JSON array, newest last, at most 20: attempt, at, executor, exception_class_path, message, traceback.';
COMMENT ON COLUMN {schema}.jobqueue_task.return_value IS
    'What the body gave, JSON; NULL until it ends SUCCESSFUL.';
COMMENT ON COLUMN {schema}.jobqueue_task.enqueued_at IS
    'When it was created, by the database''s clock, as all times here.';
COMMENT ON COLUMN {schema}.jobqueue_task.started_at IS
    'When it was claimed for the first time.';
COMMENT ON COLUMN {schema}.jobqueue_task.last_attempted_at IS
    'When it was claimed for the last time.';
COMMENT ON COLUMN {schema}.jobqueue_task.finished_at IS
    'When it ended; NULL while it is live. RETENTION counts from here.';
COMMENT ON COLUMN {schema}.jobqueue_task.parent_notified_at IS
    'When its end was sent to its parent: a task that was requeued does not tell it twice.';

COMMENT ON TABLE {schema}.jobqueue_inboxmessage IS
$$A message to a task: from outside, from another task, or that a child has ended (child_status).

To send is to insert here, in a transaction of yours, with the receiver locked FOR KEY SHARE (jobqueue_send_to_task does
it): share locks block neither other senders nor the receiver's executor. Unread messages make a SUSPENDED receiver
READY: at once by a wake-up after the commit, or within a second or two by the sweep. The receiver's commit deletes what
its poll consumed, by id. Unread messages of a task that has ended are undelivered, and go when it is pruned.$$;
COMMENT ON COLUMN {schema}.jobqueue_inboxmessage.id IS
    'Order of arrival: messages of one sender keep theirs. Not the order of commits.';
COMMENT ON COLUMN {schema}.jobqueue_inboxmessage.task_id IS
    'The receiver.';
COMMENT ON COLUMN {schema}.jobqueue_inboxmessage.sender_id IS
    'Who sent it, as the sender says: a task, or any id or NULL from outside.';
COMMENT ON COLUMN {schema}.jobqueue_inboxmessage.body IS
    'JSON; where child_status is set, the child''s return value, or its error.';
COMMENT ON COLUMN {schema}.jobqueue_inboxmessage.child_status IS
    'NULL; or the final status of the sender, a child that has ended.';
COMMENT ON COLUMN {schema}.jobqueue_inboxmessage.dedupe_key IS
    'Unique per receiver, so that a repeat (of a webhook, say) changes nothing. Such a row stays, emptied, after '
    'it was consumed.';
COMMENT ON COLUMN {schema}.jobqueue_inboxmessage.sent_at IS
    'When it was inserted.';
COMMENT ON COLUMN {schema}.jobqueue_inboxmessage.consumed_at IS
    'When the receiver took it, for messages with a dedupe_key; others are deleted. NULL is unread.';

COMMENT ON TABLE {schema}.jobqueue_executor IS
$$One process that runs tasks (manage.py run_executors), or ran them not long ago.

It writes its heartbeat every third of HEARTBEAT_TIMEOUT (30 s by default). When that is older than the timeout, others
take its tasks. A row that was deleted is written again with the next beat.$$;
COMMENT ON COLUMN {schema}.jobqueue_executor.id IS
    'New with every start: a name or process number may come again, an id does not.';
COMMENT ON COLUMN {schema}.jobqueue_executor.backend IS
    'Alias in TASKS whose tasks it runs.';
COMMENT ON COLUMN {schema}.jobqueue_executor.name IS
    'Name for people: host and process number, or what --name said.';
COMMENT ON COLUMN {schema}.jobqueue_executor.host IS
    'Machine it runs on.';
COMMENT ON COLUMN {schema}.jobqueue_executor.pid IS
    'Process number there.';
COMMENT ON COLUMN {schema}.jobqueue_executor.versions IS
    'JSON object: versions of Python, Django and jobqueue.';
COMMENT ON COLUMN {schema}.jobqueue_executor.queues IS
    'JSON array of the queues it serves; [] is all of its backend.';
COMMENT ON COLUMN {schema}.jobqueue_executor.slots IS
    'Tasks it runs at once in threads.';
COMMENT ON COLUMN {schema}.jobqueue_executor.started_at IS
    'When it started.';
COMMENT ON COLUMN {schema}.jobqueue_executor.heartbeat IS
    'Its last sign of life, by the database''s clock.';
COMMENT ON COLUMN {schema}.jobqueue_executor.state IS
    'RUNNING; DRAINING: it finishes what it has and claims nothing more; STOPPED.';
COMMENT ON COLUMN {schema}.jobqueue_executor.command IS
    'What somebody asks it to do; empty as a rule.';

COMMENT ON TABLE {schema}.jobqueue_queue IS
    'What people say about a queue; one without a row runs freely. A paused queue takes tasks and hands none out.';
COMMENT ON COLUMN {schema}.jobqueue_queue.id IS
    'A number without meaning.';
COMMENT ON COLUMN {schema}.jobqueue_queue.backend IS
    'Alias in TASKS that the queue belongs to.';
COMMENT ON COLUMN {schema}.jobqueue_queue.name IS
    'The queue: jobqueue_task.queue_name.';
COMMENT ON COLUMN {schema}.jobqueue_queue.paused_at IS
    'Since when executors claim nothing from it; NULL: it runs.';
COMMENT ON COLUMN {schema}.jobqueue_queue.paused_by IS
    'Who paused it.';
COMMENT ON COLUMN {schema}.jobqueue_queue.pause_reason IS
    'Why.';
COMMENT ON COLUMN {schema}.jobqueue_queue.resume_at IS
    'When it runs again by itself; NULL: when somebody resumes it.';

COMMENT ON FUNCTION {schema}.jobqueue_create_task IS
$$Create a task in a transaction of yours; returns its id, or that of the live task which holds the key.

task_type: the name the site's code has registered. task_id: NULL makes one. queue_name, priority: SQL
does not know how the task was declared, so say what differs from the defaults. max_attempts, timeout: NULL is as
declared. aging: the backend's OPTIONS["AGING"],
where the site has changed it. notify: have an idle executor look at the commit in place of within a second; NOTIFY
takes a database-wide lock at commit.
Raises 22023 for what could not run, saying what to give instead; 23505 when the id is taken; 40001 when the key is held
by a task beyond the transaction's snapshot: begin again.$$;
COMMENT ON FUNCTION {schema}.jobqueue_send_to_task IS
$$Send a message to a task in a transaction of yours: one row in jobqueue_inboxmessage, no more, so that the
transaction may stay open for long.

from_id: any id, or NULL. notify: have executors look for mail at the commit in place of within a second or two; NOTIFY
takes a database-wide lock at commit.
Raises P0002 where there is no such task, 55000 where it has ended, 22023 for a message that Python would refuse.$$;
COMMENT ON FUNCTION {schema}.jobqueue_json_problem IS
    'Part of jobqueue_create_task and jobqueue_send_to_task: what keeps JSON out of the queue, NULL when nothing does.';
