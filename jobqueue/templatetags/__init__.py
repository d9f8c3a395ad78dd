"""
Tags that templates load.

* `jobqueue`: the progress and the state of a task on pages of the site
* `jobqueue_admin`: the filters and the tag of the admin's templates
"""
