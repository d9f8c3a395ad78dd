"""The site of django-ox; `DATABASE_URL` and `CONN_MAX_AGE` come from the benchmark."""

import environ

env = environ.Env()

SECRET_KEY = "benchmarks"
USE_TZ = True
INSTALLED_APPS = ["django_ox"]
DATABASES = {"default": {**env.db_url("DATABASE_URL"), "CONN_MAX_AGE": env.int("CONN_MAX_AGE", default=0)}}
TASKS = {"default": {"BACKEND": "django_ox.backend.OxBackend"}}
