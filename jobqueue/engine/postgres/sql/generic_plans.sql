-- Plan each prepared statement once, for all parameters. Planning a claim took 0.5 ms, as long as the claim.
-- Parameters: none. Index: none. Locks: none.
-- Why enable_seqscan: PostgreSQL keeps a plan until the next ANALYZE. A plan made while the tables were empty scanned
--   all rows, also when the tables had filled: each claim read all READY tasks several times.
SELECT set_config('plan_cache_mode', 'force_generic_plan', FALSE), set_config('enable_seqscan', 'off', FALSE)
