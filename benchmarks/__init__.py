"""Benchmarks: this queue, other queues and plain PostgreSQL, in one run on one private server."""
