"""Pools that run claimed tasks: worker threads, and an event loop for `async def` tasks."""
