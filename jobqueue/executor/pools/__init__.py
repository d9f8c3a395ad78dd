"""Pools run claimed tasks: `base` is their interface, `threads` runs functions, `event_loop` runs `async def` tasks."""
