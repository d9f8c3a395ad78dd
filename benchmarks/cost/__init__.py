"""
What a plain task costs, counted: python -m benchmarks.cost

Times on a shared machine differ by a third from run to run, and hide that a task becomes a little more expensive with
each change. Counts repeat.

`work` is the program that is measured. It runs twice: in one run `server` and `calls` count what PostgreSQL and Python
did, in the other one `callgrind` counts the CPU instructions of the program and of PostgreSQL. `report` prints them,
and compares them with `cost.toml`.
"""
