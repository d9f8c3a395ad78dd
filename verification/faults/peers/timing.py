"""How fast all sides are told to be."""

TIMEOUT_SECONDS = 3.0  # of silence, until a worker counts as dead
BEAT_SECONDS = 1.0
POLL_SECONDS = 1.0
ATTEMPTS = 10  # of a task that raises
RETRY_SECONDS = 1
