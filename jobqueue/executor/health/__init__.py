"""
Liveness and readiness, for `--health` and systemd.

- `status`: the health of one executor.
- `aggregator`: the health of all processes of a command, in the supervisor.
- `server`: /livez and /readyz.
- `systemd`: the protocol of `Type=notify`.
"""
