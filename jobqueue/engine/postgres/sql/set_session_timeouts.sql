-- Let the server cancel a statement when its executor gives up, not earlier: with a role's statement_timeout of 20 ms,
-- a large batch never committed. A lock of another session must not stop the executor.
-- Parameters: limit, lock_wait: text with a unit. Index: none. Locks: none.
SELECT
    set_config('statement_timeout', given.limit, FALSE),
    set_config('lock_timeout', %(lock_wait)s, FALSE),
    set_config('idle_in_transaction_session_timeout', given.limit, FALSE),
    CASE WHEN current_setting('transaction_timeout', TRUE) IS NOT NULL  -- PostgreSQL 17 and later
        THEN set_config('transaction_timeout', given.limit, FALSE)
    END
FROM (SELECT %(limit)s::text) AS given ("limit")
