"""
Pools run claimed tasks in their slots.

* `base`: the interface of a pool: its slots, the claimed tasks that wait for one, and its threads
* `event_loop`: the pool of `async def` tasks: an event loop in a thread of its own
* `processes`: child processes for the bodies of `@task(process=True)`: each runs one body at a time, for a worker
  thread
* `threads`: the pool of worker threads, and how a plain function runs in one
"""
