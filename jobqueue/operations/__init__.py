"""
The part that the admin, the command line and HTTP share: the state of the queue, and bulk actions.

* `backends`: options and databases of the backends in TASKS
* `bulk/`: actions on many tasks
* `executors`: executors as people see them: what each does, and how many tasks it runs
* `explain`: why a task is in its state, and what happens next: a few plain sentences, computed from values alone
* `formatting`: times, errors and names as text
* `holders`: why tasks wait: what the explanation of a task needs, and the tasks that keep a limit from others
* `limits`: limits by key as people see them: how many tasks of a key wait, how many are active, and which number
  applies
* `links`: rows that a page of the admin shows
* `list/`: lists of tasks: filters, search, rows, and failures by cause
* `log_entries`: the manual actions on a row, from the log of Django's admin
* `overview/`: the state of the whole queue: figures, charts, and what is wrong
* `payloads`: values of JSON columns: taken out by the database, read as text, shown masked, indented and cut
* `queries`: reading the task table, however large: each statement stops after a bounded number of rows
* `schedules`: schedules as people see them: in words, their next ticks, and what became of the last ones
* `task/`: one task, as its page and `jobqueue show` show it
* `workflows`: the workflows that this process knows
"""
