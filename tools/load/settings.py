"""A site that accepts submissions. tools/load_test.py sets DATABASE_URL and LOAD_TOKEN (a hash)."""

import environ

env = environ.Env()

SECRET_KEY = "load-test"
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tools.load.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "jobqueue", "tools.load"]
# Each thread of the server keeps its connection.
DATABASES = {"default": {**env.db_url("DATABASE_URL"), "CONN_MAX_AGE": None}}
TASKS = {
    "default": {
        "BACKEND": "jobqueue.backend.JobQueueBackend",
        "OPTIONS": {"HTTP_TOKENS": {"load": {"sha256": env("LOAD_TOKEN"), "tasks": ["load.*"], "queues": ["*"]}}},
    }
}
