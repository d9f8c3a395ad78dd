"""
One attempt of a task, from its row to the outcome.

`task_runner` prepares a task, calls its body and makes the outcome; `actor_runner` does the same for a poll.
`async_runner` runs `async def` bodies. `atomic` commits the outcome in the body's transaction. `attempt` has the
values, and the interruption of a body.
"""
