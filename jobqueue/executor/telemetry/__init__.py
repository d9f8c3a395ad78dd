"""What the executor reports: log lines and signals of attempts, errors as text, and the log of `run_executors`."""
