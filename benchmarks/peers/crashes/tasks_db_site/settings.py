"""The site of django-tasks-db; `DATABASE_URL` comes from the environment."""

import django
import environ

SECRET_KEY = "benchmark"
USE_TZ = True
# Django 6 has the framework that django-tasks backports.
INSTALLED_APPS = [
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "django_tasks_db",
    "benchmarks.peers.crashes.tasks_db_site",
]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
