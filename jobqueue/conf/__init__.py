"""
The settings of the queue, and what depends on the versions of Django and the pool of connections.

* `compat`: Django's task framework, or its backport
* `connection_pool`: how many connections an executor opens, and how many Django's pool has
* `http_tokens`: the programs that may submit tasks or read metrics
* `options`: the OPTIONS of TASKS[alias]
"""
