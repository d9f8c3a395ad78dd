"""The site of django-tasks-db; `DATABASE_URL` comes from the benchmark."""

import environ

SECRET_KEY = "benchmarks"
USE_TZ = True
INSTALLED_APPS = ["django_tasks", "django_tasks_db"]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
