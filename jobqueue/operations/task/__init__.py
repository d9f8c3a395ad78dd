"""
One task, as its page and `jobqueue show` show it.

* `batch`: a batch as its page shows it: how many members ended in which way, and why members failed
* `detail`: the details of a task, as its page and `jobqueue show` show them
* `inbox`: the inbox of a task, as it is shown
* `journal`: the journal of a workflow, and what people can do with its entries
* `reports`: what the body of a task has reported, as it is shown: progress and log lines
* `timeline`: the timeline of a task: its attempts and polls, newest first, with requeues between them
* `tree`: the ancestors of a task, and its descendants as a tree
"""
