"""
Periodic tasks: when they are due and which ticks run. It knows no engine.

* `describe`: expressions of schedules in words of the active language
* `expressions`: when a schedule is due: `Cron` and `Every`
* `from_celery`: Celery's schedule objects as `Cron` and `Every`, and its priorities as ours
* `planning`: which ticks of a schedule become tasks, which wait, and which are skipped: a function of the row and
  the time
* `rows`: between a row and its values: the expression, the policy, and the template of its tasks
"""
