"""
One attempt of a task, from its row to the outcome.

* `actor_runner`: an actor's poll: from its row and inbox to a context, and from the actions that it returns to an
  outcome
* `async_runner`: one attempt of an `async def` task: its body runs on the event loop, its ORM calls in a thread of
  its own
* `atomic`: the end of an attempt in a thread, and a body with its outcome in one transaction, on the body's own
  connection
* `attempt`: one attempt of a claimed task: its values, and a body in a thread that an exception can interrupt
* `body_process`: the program of a child process that runs the bodies of `@task(process=True)`, on connections of its
  own
* `determinism`: reports of what the body of a workflow must not do outside of its steps: a later run may get another
  answer
* `events`: report the start and the end of attempts: log lines, and the signals of django.tasks, after the commit
* `task_runner`: one attempt of a claimed task: prepare it, call its body, turn the result or the error into an
  outcome
* `thread_interrupts`: raise an exception in a body's thread, but not at a line where it would leave a lock locked
  for ever
* `workflow_runner`: a workflow's run: the check of what it waits for, its body on its journal, and the outcome of both
"""
