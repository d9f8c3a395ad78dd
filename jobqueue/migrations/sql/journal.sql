-- Set the storage parameters of the journal, and explain it in psql.
-- Parameters: none. Locks: the table SHARE UPDATE EXCLUSIVE, briefly. Reads and writes continue.
-- fillfactor: an entry that waits is written once more.
ALTER TABLE jobqueue_journalentry SET (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0
);
COMMENT ON TABLE jobqueue_journalentry IS
$$A recorded call of a workflow: a step, a wait, a child. Its body runs from the top in each poll, and gets the value of
each recorded call.

An executor inserts an entry only while it holds the claim of the task. The entries are deleted with the task.$$;
COMMENT ON COLUMN jobqueue_journalentry.id IS 'Order of recording.';
COMMENT ON COLUMN jobqueue_journalentry.task_id IS 'The workflow. Not a foreign key: no task pays for one.';
COMMENT ON COLUMN jobqueue_journalentry.name IS 'Of the call, unique in the task: charge_card, then charge_card#2.';
COMMENT ON COLUMN jobqueue_journalentry.kind IS
'STEP, SLEEP, RECEIVE, SPAWN, WAIT, SEND, VALUE, PATCH, COMPENSATION, SHIELD, CANCEL, or MEMBER of a batch.';
COMMENT ON COLUMN jobqueue_journalentry.status IS
'WAITING, RETRYING, SUCCESSFUL, FAILED, TIMED_OUT, CANCELLED, or SKIPPED.';
COMMENT ON COLUMN jobqueue_journalentry.digest IS 'Of the arguments: a call with others does not fit the journal.';
COMMENT ON COLUMN jobqueue_journalentry.value IS 'What the call returned: a result, or a message.';
COMMENT ON COLUMN jobqueue_journalentry.error IS 'Of the last attempt, if it failed. As an element of a task''s errors.';
COMMENT ON COLUMN jobqueue_journalentry.attempts IS 'Of a step, that have ended.';
COMMENT ON COLUMN jobqueue_journalentry.child_id IS 'The child that was spawned, or the sender of the message.';
COMMENT ON COLUMN jobqueue_journalentry.due_at IS 'When the wait ends, or when the step runs again.';
