"""The queue over HTTP: submit, look, cancel, requeue, send, health. `urls.py` names the views."""
