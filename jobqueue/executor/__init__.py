"""
The process that runs tasks.

loop.py is the loop: commit what has finished, wake what is due, claim what fits. running/ is one
claimed task from its row to the outcome. The other files are what the two stand on.
"""
