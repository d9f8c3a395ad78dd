"""
Pools that run claimed tasks: worker threads, and an event loop for `async def` tasks.

- `base`: the interface of a pool: its slots, the tasks that wait for one, and its threads.
- `threads`: the pool of worker threads.
- `event_loop`: the pool of `async def` tasks.
"""
