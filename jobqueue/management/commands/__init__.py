"""
The commands that Django finds here.

* `jobqueue`: verbs and flags of `manage.py jobqueue`
* `run_executors`: read the flags, and start an executor or a supervisor
"""
