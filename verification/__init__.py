"""
Checks of the promise under races and crashes. README.md explains them.

interleavings/: transactions that race, one statement at a time. simulation/: random moves of executors, senders and
admins. faults/: real processes and servers that are killed, frozen and cut off.
"""
