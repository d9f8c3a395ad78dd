"""
Actions on many tasks. Only this part of `operations` writes.

* `actions`: the actions on many tasks: which tasks each can change, how, and every sentence that people read about
  it
* `actor`: A bulk action as a task of the queue: for more tasks than one request can change, or for a number of
  tasks a second
* `audit_log`: manual actions, as entries of the log of Django's admin
* `target`: bulk actions: change some tasks by id, or all tasks of a selection, in batches
"""
