"""
`manage.py jobqueue`: each verb is one module, with its arguments and its action.

If the name of a verb differs from that of its module, the list gives it.

* `arguments`: values of the command line, and flags that several verbs have
* `backends`: the engines that a command works on
* `bulk`: `requeue`, `cancel` and `prune`: tasks by id, or all tasks of a filter, in batches
* `celery_entries`: the periodic tasks of Celery beat: from the tables of django-celery-beat and from
  CELERY_BEAT_SCHEDULE
* `console`: what a command writes: results to stdout, messages to stderr, changes to the site's log
* `doctor`: `doctor`: checks that need the database
* `enqueue`: `submit` and `send`: a task or a message by hand
* `executors`: `executors`: list executors, or send them a command and wait for the answers
* `import_celery_beat`: `import_celery_beat`: create schedules that do what Celery beat does
* `limits`: `limits`: list the keys of limits by key, and set or reset their numbers while the site runs
* `listing`: `list`: tasks of a filter, as in the admin's list
* `migrate_from`: `migrate_from`: what becomes of a site's code for Celery or another queue
* `notification_checks`: the check of `doctor` that opens a connection and may wait for seconds
* `queues`: `pause`, `resume` and `limit`: executors do not claim tasks of a paused queue
* `schedules`: `schedules`: list schedules, show one with its ticks, pause, resume, run now, backfill
* `show`: `show`: the details of a task, as on its page in the admin
* `status`: `status`: queues, executors, and what ended in the last minute
* `tail`: `tail`: tasks as they end
* `task_filters`: the flags that say which tasks a verb works on, as filters of the admin's list
* `verbs`: what a verb is, and the options that all of them have
* `workflows`: `workflows`: how many live workflows run on which version of the code, and what they wait for;
  `workflow`: change the journal of one
"""
