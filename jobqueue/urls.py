"""`path("jobqueue/", include("jobqueue.urls"))`."""

from django.urls import path

from jobqueue.http import health, metrics, openapi, submit, tasks

app_name = "jobqueue"
urlpatterns = [
    path("submit/", submit.submit, name="submit"),
    path("submit/batch/", submit.submit_batch, name="submit-batch"),
    path("tasks/<str:task_id>/", tasks.show, name="task"),
    path("tasks/<str:task_id>/cancel/", tasks.cancel, name="cancel"),
    path("tasks/<str:task_id>/requeue/", tasks.requeue, name="requeue"),
    path("tasks/<str:task_id>/messages/", tasks.messages, name="messages"),
    path("health/", health.ready, name="health"),
    path("health/live", health.live, name="live"),
    path("health/ready", health.ready, name="ready"),
    path("metrics/", metrics.metrics_as_text, name="metrics"),
    path("metrics.json", metrics.metrics_as_json, name="metrics-json"),
    path("openapi.json", openapi.document, name="openapi"),
]
