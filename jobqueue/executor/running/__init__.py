"""One attempt of a task, from its row to the outcome."""
