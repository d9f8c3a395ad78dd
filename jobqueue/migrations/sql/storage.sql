-- Set the storage parameters of queue tables: each row is written a few times, then deleted.
-- Parameters: {schema}. Locks: each table SHARE UPDATE EXCLUSIVE, briefly. Reads and writes continue. The last statement
--   locks jobqueue_task ACCESS EXCLUSIVE and writes its indexes again: run it before tasks exist.
-- fillfactor: leave room for the next version of a row on its page. That of jobqueue_task is in room.sql.
-- autovacuum: run at 1 % of dead rows instead of 20 %, without pauses. Each claim leaves a dead row that later
--   claims have to skip. Statistics are renewed at 2 %, because those of a queue are soon outdated.
-- statistics: a queue may hold one READY task in a thousand; without them estimates of its depth are far off.
ALTER TABLE jobqueue_task SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
    toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE jobqueue_inboxmessage SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000
);
ALTER TABLE jobqueue_taskprogress SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE jobqueue_tasklog SET (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE jobqueue_executor SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200
);
ALTER TABLE jobqueue_counterdelta SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 1000
);
ALTER TABLE jobqueue_counter SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE jobqueue_counterperiod SET (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
CREATE STATISTICS IF NOT EXISTS {schema}.jobqueue_task_depths (mcv) ON backend, queue_name, status FROM jobqueue_task;
ALTER TABLE jobqueue_admissionrequest SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 1000
);
-- Keys of limits sort by bytes, so that an index range contains exactly the keys of one limit.
ALTER TABLE jobqueue_task
    ALTER COLUMN concurrency_key TYPE varchar(560) COLLATE "C",
    ALTER COLUMN rate_key TYPE varchar(560) COLLATE "C";
