"""Periodic tasks.

| file | content |
|---|---|
| `expressions.py` | `Cron` and `Every`: the moments at which a schedule is due |
| `celery_schedules.py` | the schedules of Celery as `Cron` and `Every` |
"""
