"""
Lists of tasks: filters, search, rows, and failures by cause.

* `failures`: failed tasks by their cause: task, exception class, and message without numbers and ids
* `interpretation`: what a text in the search box means
* `names`: the names of task types, queues and tags: declared, configured, counted, or of few tasks
* `rows`: one page of a list of tasks: what a row shows, with masked arguments and errors
* `search`: the search box of the task list: one text, and what it selects
* `selection`: which tasks a list shows and an action changes: filters and a search, as texts that an address and a
  task can hold
"""
