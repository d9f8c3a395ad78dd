"""
Liveness and readiness of an executor.

* `probes`: answer service managers: /livez and /readyz over HTTP, and systemd's `Type=notify`
* `status`: health: whether the threads of an executor move, and whether it can be relied on
"""
