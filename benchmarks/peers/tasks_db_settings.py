"""The site of django-tasks-db; `DATABASE_URL` comes from the benchmark."""

import django
import environ

SECRET_KEY = "benchmarks"
USE_TZ = True
# Django 6 has the framework that django-tasks backports.
INSTALLED_APPS = [*(["django_tasks"] if django.VERSION < (6,) else []), "django_tasks_db"]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
