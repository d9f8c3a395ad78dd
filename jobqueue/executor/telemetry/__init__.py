"""
The log of an executor, and errors as text.

* `console_log`: the log of `run_executors` where the site has set up none
* `emails`: mails about failures: none unless the site's LOGGING asks for them, and then few
* `errors`: exceptions as text, for rows and for the log: bounded, and without the executor's own frames
* `logger`: the executor's loggers: they never raise, and they mask what REDACT names
"""
