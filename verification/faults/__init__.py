"""The promise, tried out: real processes and servers are killed, frozen and cut off, and one checker judges."""
