"""The same faults for everybody: workers of two other queues beside ours, and what came of their tasks."""
