-- Plan each prepared statement once, for all parameters. Planning a claim took 0.5 ms, as long as the claim.
-- Parameters: none. Index: none. Locks: none.
-- Why enable_seqscan: a plan made while the tables are empty takes a scan of all rows for the cheapest, and remains when
--   they are full, until the next ANALYZE. A claim then read all READY tasks several times.
SELECT set_config('plan_cache_mode', 'force_generic_plan', FALSE), set_config('enable_seqscan', 'off', FALSE)
