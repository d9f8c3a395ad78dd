"""
What the executor reports.

`events` logs attempts and sends their signals. `errors` turns exceptions into text. `logger` masks secrets in records.
`console_log` is the log of `run_executors` if the site has none. `emails` limits the mails about failures.
"""
