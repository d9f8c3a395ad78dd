-- The time of an executor's last heartbeat: the one in its row, or a later one that found the row locked.
-- Part of executors_with_running_tasks.sql and queue_latency.sql. engine/heartbeats.py has the same for Django's ORM.
-- A fallback heartbeat in the future does not count: it was written before the clock was set back.
-- Index: jobqueue_fallback_heartbeat. Locks: none.
GREATEST(executor.heartbeat, (
    SELECT max(fallback.at) FROM jobqueue_fallbackheartbeat AS fallback
    WHERE fallback.executor_id = executor.id AND fallback.at < (SELECT clock_timestamp()) + interval '1 second'
))
