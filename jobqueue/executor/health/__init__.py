"""Liveness and readiness: `status` finds the problems, `probes` answers `--health` and systemd."""
