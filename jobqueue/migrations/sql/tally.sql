-- Explain the tally, let its tables be what they are, and let the planner know which queues hold which states.
-- Parameters: none. Locks: each table SHARE UPDATE EXCLUSIVE, for a moment; reads and writes go on.
-- autovacuum: deltas are inserted and taken away within seconds; rows of all time are written every few seconds.
-- statistics: for estimates of how deep a queue is. Its READY rows may be one in a thousand of another's.
ALTER TABLE {schema}.jobqueue_counterdelta SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.5,
    autovacuum_analyze_threshold = 1000
);
ALTER TABLE {schema}.jobqueue_counter SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE STATISTICS {schema}.jobqueue_task_depths (mcv) ON backend, queue_name, status FROM {schema}.jobqueue_task;

COMMENT ON TABLE {schema}.jobqueue_counter IS
$$What happened to the tasks of one type in one queue: in one minute, kept for a day, or ever since where minute is NULL.

Executors, and whoever asks for metrics, add the rows of jobqueue_counterdelta to it every few seconds, to the row of their
minute and to the one of all time. Retention of tasks takes nothing away from it.$$;
COMMENT ON COLUMN {schema}.jobqueue_counter.id IS
    'A number without meaning.';
COMMENT ON COLUMN {schema}.jobqueue_counter.backend IS
    'Alias in TASKS that the tasks belong to.';
COMMENT ON COLUMN {schema}.jobqueue_counter.queue_name IS
    'Their queue: jobqueue_task.queue_name.';
COMMENT ON COLUMN {schema}.jobqueue_counter.task_type IS
    'Their type: jobqueue_task.task_type.';
COMMENT ON COLUMN {schema}.jobqueue_counter.minute IS
    'Beginning of the minute that is counted here; NULL: everything since the table was made.';
COMMENT ON COLUMN {schema}.jobqueue_counter.submitted IS
    'Tasks created, by whomever.';
COMMENT ON COLUMN {schema}.jobqueue_counter.completed IS
    'Tasks that ended SUCCESSFUL.';
COMMENT ON COLUMN {schema}.jobqueue_counter.failed IS
    'Attempts that failed.';
COMMENT ON COLUMN {schema}.jobqueue_counter.retries IS
    'Attempts that failed and are followed by another one.';
COMMENT ON COLUMN {schema}.jobqueue_counter.dead IS
    'Tasks that ended FAILED.';
COMMENT ON COLUMN {schema}.jobqueue_counter.lost IS
    'Times that a task was taken from an executor which was lost.';
COMMENT ON COLUMN {schema}.jobqueue_counter.wait_seconds IS
    'Seconds from READY to the claim, of all started attempts together.';
COMMENT ON COLUMN {schema}.jobqueue_counter.run_seconds IS
    'Seconds that their bodies took, together.';
COMMENT ON COLUMN {schema}.jobqueue_counter.waits IS
    'JSON array: how many of them waited for how long, one number for each bucket of jobqueue.tally.EDGES.';
COMMENT ON COLUMN {schema}.jobqueue_counter.runs IS
    'The same of how long they ran.';

COMMENT ON TABLE {schema}.jobqueue_counterdelta IS
    'What a transaction adds to jobqueue_counter; only ever inserted, in the transaction that it counts, so that nobody '
    'waits for anybody, and a rollback is not counted.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.id IS
    'Order in which they are taken.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.backend IS
    'As in jobqueue_counter.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.queue_name IS
    'As in jobqueue_counter.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.task_type IS
    'As in jobqueue_counter.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.at IS
    'When it was counted, which gives the minute.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.submitted IS
    'As in jobqueue_counter; NULL is 0, here and below.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.completed IS
    'As in jobqueue_counter.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.failed IS
    'As in jobqueue_counter.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.retries IS
    'As in jobqueue_counter.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.dead IS
    'As in jobqueue_counter.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.lost IS
    'As in jobqueue_counter.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.attempts IS
    'Started attempts that are counted here: all with these buckets.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.wait_bucket IS
    'Place in jobqueue_counter.waits; NULL where no attempt was started.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.run_bucket IS
    'Place in jobqueue_counter.runs.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.wait_seconds IS
    'As in jobqueue_counter.';
COMMENT ON COLUMN {schema}.jobqueue_counterdelta.run_seconds IS
    'As in jobqueue_counter.';
