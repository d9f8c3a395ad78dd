"""
The parts of the engine that differ on PostgreSQL, under the same names. `sql/` has one statement in each file.

* `admissions`: admission as statements of PostgreSQL
* `claim`: claim: one statement, as a rule
* `code_waits`: tasks that wait for code, as statements of PostgreSQL
* `commit`: commit: one statement for plain outcomes
* `connection`: PostgreSQL for the engine: statements from files, transactions, formats of values
* `counters`: counters as statements of PostgreSQL
* `entries`: rows of journals, as statements of PostgreSQL
* `engine`: the engine on PostgreSQL: parts that run set-based statements in place of the portable ones
* `executors`: executors as statements of PostgreSQL
* `inbox`: rows of messages, as statements of PostgreSQL
* `inserts`: enqueue and insert new tasks, up to 1,000 in one statement
* `queues`: queues as statements of PostgreSQL
* `tasks`: tasks as statements of PostgreSQL
* `ticks`: ticks as statements of PostgreSQL
"""
