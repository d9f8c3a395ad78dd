-- Tell waiting executors that a queue has work. Sent after the commit, because a transaction that notifies takes a
-- database-wide lock when it commits.
-- Parameters: channel, payload. Index: none. Locks: the notification queue at commit.
SELECT pg_notify(%(channel)s, %(payload)s)
