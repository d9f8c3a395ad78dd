-- Notify executors that a queue has work. After the commit: a commit that notifies takes a database-wide lock.
-- Parameters: channel, payload; is_alone: the statement is a transaction of its own. Then its commit does not wait until
--   the log is on disk, because nothing but the notification is in it.
-- Index: none. Locks: the notification queue at commit.
SELECT CASE WHEN %(is_alone)s THEN set_config('synchronous_commit', 'off', TRUE) END, pg_notify(%(channel)s, %(payload)s)
