"""
Values that all other parts of the queue exchange, and how they become text and JSON.

* `arguments`: the parameters of a task's function, and its arguments as JSON
* `backoff`: the wait before a retry
* `batches`: the state of a batch, and the messages to it
* `causes`: the cause of a failure: task, exception class, and message without numbers and ids
* `changes`: the answers of functions that change many tasks, such as cancel() and requeue()
* `counters`: the values behind the metrics: counters of tasks and ticks, and gauges of the current state
* `failpoints`: named points where a test makes this process die, freeze, wait or fail
* `history`: the history of a task: what its other columns do not keep of successful polls, releases and requeues
* `ids`: ids of tasks: UUIDv7, made in Python, so that a parent knows its child's id before the insert
* `journal`: the journal of a workflow: its entries, and what a suspended workflow waits for
* `json`: JSON text for rows, and values from rows
* `kinds`: the kinds of values that people set: which ones are valid, and the sentence about a wrong one
* `limit_keys`: the keys of limits as rows store them: the name of the limit, a separator, and the key
* `message_types`: the types of messages to workflows: a JSON object names its type in the member `type`
* `policies`: policies for ticks that overlap or were missed, and the reasons why a tick became no task
* `posix`: modules that only POSIX systems have
* `records`: values between the executor and the engine: claimed tasks, outcomes, messages
* `redaction`: mask the values that OPTIONS["REDACT"] names, on every page and in the log
* `reports`: what a body reports while it runs: progress and log lines
* `safe_log`: A logger for code that must go on, whatever the site's handlers and filters raise
* `states`: the enumerations that columns hold: the state of a task, its pool, the kind of a limit, a command
* `text`: text from outside: what a database can store, what a terminal can bear, and the name that a misspelled one
  means
* `typed`: read the State and the Message of an actor from JSON, by their types
"""
