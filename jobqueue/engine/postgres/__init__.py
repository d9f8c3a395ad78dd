"""
The parts of the engine that differ on PostgreSQL, under the same names. `sql/` has one statement in each file.

* `admissions`: admission as statements of PostgreSQL
* `code_waits`: tasks that wait for code, as statements of PostgreSQL
* `connection`: PostgreSQL for the engine: statements from files, transactions, formats of values
* `engine`: the engine on PostgreSQL: parts that run set-based statements in place of the portable ones
* `executors`: executors as statements of PostgreSQL
* `inbox`: rows of messages, as statements of PostgreSQL
* `queues`: queues and counters as statements of PostgreSQL
* `tasks`: enqueue, claim and commit on PostgreSQL: one statement each, as a rule
* `ticks`: ticks as statements of PostgreSQL
"""
