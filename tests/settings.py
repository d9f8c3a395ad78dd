"""Settings of the tests and of the processes they start (`process_environment` in fixtures.py)."""

import tempfile
from pathlib import Path

import environ

env = environ.Env()

SECRET_KEY = "tests"
DEBUG = env.bool("TESTS_DEBUG", default=False)
USE_TZ = True
TIME_ZONE = "UTC"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "/static/"
SITE_URL = "http://127.0.0.1:1"  # the demo's webhook. Its tests set their own server.
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "jobqueue",
    "demo_project.photos",
    "tests",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

DATABASES = {
    # Without DATABASE_URL, fixtures.py starts a private cluster when the first test needs a database.
    "default": env.db_url("DATABASE_URL", default="postgresql://postgres@/jobqueue?host=/nonexistent"),
    "sqlite": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": env("SQLITE_PATH", default=str(Path(tempfile.gettempdir()) / "jobqueue-tests.sqlite3")),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    },
}
if env.bool("TESTS_POOL", default=False):  # Django's connection pool, psycopg_pool
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 2, "max_size": 12}
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
JOBQUEUE = "jobqueue.backend.JobQueueBackend"
TASKS = {
    # Acceptance tests set options of their processes, such as {"HEARTBEAT_TIMEOUT": 2}.
    "default": {
        "BACKEND": JOBQUEUE,
        "QUEUES": [],
        "OPTIONS": env.json("TESTS_OPTIONS", default={}),
    },
    "sqlite": {
        "BACKEND": JOBQUEUE,
        "QUEUES": env.list("TESTS_QUEUES", default=[]),
        "OPTIONS": {"DATABASE": "sqlite"},
    },
}

if "VERIFICATION_DIARY" in env:  # a process of verification/faults/environment.py
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"logbook": {"class": "verification.faults.diary.Logbook"}},
        "loggers": {
            "jobqueue": {"handlers": ["logbook"], "level": "INFO", "propagate": False},
            "jobqueue.executor.running.events": {"level": "DEBUG"},
            # As in run_executors: these loggers would report each failure again.
            "django.tasks": {"level": "CRITICAL"},
            "django_tasks": {"level": "CRITICAL"},
        },
    }
