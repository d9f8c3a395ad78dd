"""The timing that all queues are configured with."""

TIMEOUT_SECONDS = 3.0  # without a heartbeat, until a worker counts as dead
BEAT_SECONDS = 1.0
POLL_SECONDS = 1.0
ATTEMPTS = 10  # for a task that raises
RETRY_SECONDS = 1
