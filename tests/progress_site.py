"""A site with a page that shows the progress of a task, under a strict content security policy."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.template import RequestContext, Template
from django.urls import include, path

from demo_project.middleware import POLICY

PAGE = """{% load jobqueue static %}<!doctype html><html lang="en"><title>Import</title>
<script type="module" src="{% static 'jobqueue/progress.js' %}"></script>
<main><h1>Import</h1>
{% task_progress task_id label="Progress of the import" %}
{% task_status task_id %}
</main></html>"""


def page(request: HttpRequest, task_id: UUID) -> HttpResponse:
    html = Template(PAGE).render(RequestContext(request, {"task_id": task_id}))
    return HttpResponse(html, headers={"Content-Security-Policy": POLICY})


urlpatterns = [
    path("imports/<uuid:task_id>/", page, name="import"),
    path("progress/", include("jobqueue.http.progress")),
]
