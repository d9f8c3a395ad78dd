"""A site for measurements. benchmarks.cluster sets `DATABASE_URL`."""

import environ

env = environ.Env()

SECRET_KEY = "benchmarks"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["jobqueue", "benchmarks"]
DATABASES = {"default": env.db_url("DATABASE_URL")}
DATABASES["default"].setdefault("OPTIONS", {})["prepare_threshold"] = env.int("PREPARE_THRESHOLD", default=None)
TASKS = {"default": {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": [], "OPTIONS": {}}}
