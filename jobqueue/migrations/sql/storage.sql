-- Let the tables be what they are: a queue, in which each row is written a few times and goes away.
-- Parameters: none. Locks: each table SHARE UPDATE EXCLUSIVE, for a moment; reads and writes go on.
-- fillfactor: room for the next version of a row beside it; an executor's row is nothing but its next versions.
-- autovacuum: after 1 % of dead rows in place of 20 %, and without pauses. Every claim and commit leaves one behind,
--   in the way of the next claim. Statistics after 2 %, since what they tell about a queue is soon over.
ALTER TABLE jobqueue_task SET (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 1000,
    toast.autovacuum_vacuum_scale_factor = 0.01,
    toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE jobqueue_inboxmessage SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 1000
);
ALTER TABLE jobqueue_executor SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
