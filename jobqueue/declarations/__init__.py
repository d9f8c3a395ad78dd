"""
The declarations of code: tasks, actors, limits and schedules, with the values that their bodies use.

It knows no engine and no rows.

* `actions`: the actions that a poll of an actor returns
* `actor`: tasks that are polled many times, with typed state, an inbox and children
* `backends`: the jobqueue backends in TASKS, their queues, and the home of the tasks of this package
* `canvas`: chain(), group() and chord(): planned calls as workflows of this package
* `checks`: system checks
* `context`: the context of a body: what it may ask and report while it runs
* `function`: @task: Django's Task with the options of a queue
* `limits`: limits by key: how many tasks run at once, and how many start in a period
* `members`: the with-blocks of batches: which batch the tasks belong to that a caller enqueues
* `middleware`: values that travel from an enqueue to the run, such as the language
* `new_task`: the rows of new tasks, made of the options of a task and the arguments of its calls
* `options`: the options of a task: which values are valid, and which apply to a row
* `registry`: which code belongs to which task_type
* `replay`: one run of a workflow's body on its journal: what is recorded, what is to be written, and how the run ends
* `results`: rows as TaskResult and TaskError of django.tasks
* `routes`: options of tasks in settings, by patterns of their names
* `schedules`: schedules that code declares: `schedule()`, `@task(schedule=...)` and `class Reminder(Actor,
  schedule=...)`
* `step`: @step: the options of a step of a workflow
* `stored_calls`: planned calls as JSON, in the arguments of chains, groups and batches
* `step_run`: one call of a step: its recorded result, or an attempt whose result is recorded
* `workflow`: @workflow: durable functions as tasks
* `workflow_context`: the context of a workflow: calls that are recorded in its journal, and return the recorded result
  in later runs
"""
