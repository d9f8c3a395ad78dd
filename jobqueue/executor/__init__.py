"""
The process that runs tasks.

pulse.py is the loop: commit what has finished, wake what is due, claim what fits. run.py is one
claimed task from load to outcome. The other files are what the two stand on.
"""
