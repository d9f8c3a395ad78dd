"""
One attempt of a task, from its row to the outcome.

- `attempt`: the values of an attempt, and how to interrupt a body in a thread.
- `task_runner`: prepare a claimed task, call its body, turn the result or the error into an outcome.
- `actor_runner`: the same for the poll of an actor: its context, and the actions that it returns.
- `async_runner`: bodies of `async def` functions, on the event loop.
- `atomic`: a body and its outcome in one transaction.
"""
