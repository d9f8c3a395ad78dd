"""
The queue over HTTP. `jobqueue/urls.py` maps URLs to the views in submit, tasks, health, metrics and openapi.

`auth` identifies the caller, `request_body` reads and validates a body, `responses` answers, and `schemas` has the
types of both. `submission_parser` turns a body into a submission. `label_limits` limits the labels of metrics.
"""
