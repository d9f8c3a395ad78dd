-- Hint to waiting executors that a queue has work; sent after the commit, never in a hot transaction, since it
-- takes a database-wide lock at commit.
-- Parameters: channel, payload. Locks: the notification queue at commit.
SELECT pg_notify(%(channel)s, %(payload)s)
