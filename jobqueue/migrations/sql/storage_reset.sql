-- Give the tables the server's defaults back.
-- Parameters: none. Locks: each table SHARE UPDATE EXCLUSIVE, for a moment.
ALTER TABLE jobqueue_task RESET (
    fillfactor,
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold,
    autovacuum_vacuum_cost_delay,
    autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold,
    toast.autovacuum_vacuum_scale_factor,
    toast.autovacuum_vacuum_threshold,
    toast.autovacuum_vacuum_cost_delay
);
ALTER TABLE jobqueue_inboxmessage RESET (
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold,
    autovacuum_vacuum_cost_delay,
    autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold
);
ALTER TABLE jobqueue_executor RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
