"""
The queue over HTTP. `jobqueue/urls.py` maps URLs to the views.

* `auth`: the caller of a request, a program with a token of HTTP_TOKENS or a logged-in user, and its permissions
* `endpoint`: the common part of all views: the method, the caller, errors, and their description in the OpenAPI
  document
* `health`: GET health/live and health/ready
* `metrics`: GET metrics/ and metrics.json: counters and gauges of all executors, queues and schedules
* `openapi`: GET openapi.json: an OpenAPI 3.1 document, made from the arguments of endpoint() and the types in
  schemas.py
* `progress`: the progress of a task on pages of the site, by a signed token
* `request_body`: read the JSON body of a request
* `request_headers`: the headers that clients of HTTP interfaces send by convention: Idempotency-Key, If-Match,
  If-None-Match
* `responses`: responses and errors
* `schemas`: the JSON that callers send and receive, as types. openapi.py makes the document from them
* `submit`: POST submit/ and submit/batch/
* `tasks`: GET tasks/<id>/, and POST cancel/, requeue/ and messages/ below it
"""
