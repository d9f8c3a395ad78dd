"""
Tags that templates load.

* `jobqueue_admin`: the filters and the tag of the admin's templates
"""
