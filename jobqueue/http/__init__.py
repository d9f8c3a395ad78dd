"""
The queue over HTTP. `jobqueue/urls.py` maps URLs to the views in submit, tasks, health, metrics and openapi.

`endpoint` makes a view of a function, and `auth` identifies the caller. `request_body` reads and validates a body,
`responses` answers, and `schemas` has the types of both.
"""
