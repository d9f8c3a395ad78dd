"""
`manage.py jobqueue`. Each verb is a function of the console, which writes, and of the flags.

`status`, `show` and `tail` read. `executors` lists executors and commands them. `queues` pauses and limits, `bulk`
requeues, cancels and prunes, `enqueue` submits tasks and sends messages. `schedules` reads and changes schedules.
`doctor` prints `inspect.findings` and checks what takes longer: each key of a limit with `limit_checks`, notifications
with `notification_checks`. `import_celery_beat` creates schedules from what `celery_entries` reads. `arguments` reads
values, `backends` finds the engines. `management/commands/jobqueue.py` lists the verbs and their flags.
"""
