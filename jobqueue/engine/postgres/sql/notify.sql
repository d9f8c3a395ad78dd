-- Notify executors that a queue has work. After the commit: a commit that notifies takes a database-wide lock.
-- Parameters: channel, payload; is_alone: whether the statement is a transaction of its own. Its commit then
--   does not wait until the log is on disk, because it contains only the notification.
-- Index: none. Locks: the notification queue at commit.
SELECT CASE WHEN %(is_alone)s THEN set_config('synchronous_commit', 'off', TRUE) END, pg_notify(%(channel)s, %(payload)s)
