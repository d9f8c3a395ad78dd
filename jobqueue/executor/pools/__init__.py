"""
Pools that run claimed tasks: worker threads, and an event loop for `async def` tasks.

- `base`: the interface of a pool, and what each pool needs to run a task.
- `buffer`: the slots of a pool, and the tasks that wait for one.
- `threads`: the pool of worker threads.
- `event_loop`: the pool of `async def` tasks.
"""
