"""
What the executor reports about its tasks.

- `events`: the log line and the signals of each start and end.
- `logger`: the executor's loggers, which never raise.
- `console_log`: the log of `run_executors` where the site has none, as text or JSON.
- `redaction_filter`: masks secrets in tracebacks.
- `errors`: exceptions as text, for rows and for the log.
"""
