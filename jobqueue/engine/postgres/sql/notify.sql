-- Notify executors that a queue has work. After the commit: a commit that notifies takes a database-wide lock.
-- Parameters: channel, payload. Index: none. Locks: the notification queue at commit.
SELECT pg_notify(%(channel)s, %(payload)s)
