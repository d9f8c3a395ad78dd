"""Settings of the demo. Environment variables set everything that depends on the machine."""

from __future__ import annotations

from pathlib import Path

import environ

from tools.postgres import demo_cluster, demo_folder

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()

DEBUG = env.bool("DEBUG", default=False)
# The demo listens on this machine only. Keep the key of your own site secret.
SECRET_KEY = env.str("SECRET_KEY", default="demo-only-not-a-secret")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
# The executors call the webhook of the site at this URL.
SITE_URL = env.str("SITE_URL", default="http://127.0.0.1:8000")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "jobqueue",
    "demo_project",
    "demo_project.photos",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "demo_project.middleware.strict_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "demo_project.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {"default": env.db("DATABASE_URL") if env.str("DATABASE_URL", default="") else demo_cluster().database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TASKS = {
    "default": {
        "BACKEND": "jobqueue.backend.JobQueueBackend",
        "QUEUES": ["default", "images", "albums", "webhooks", "reports"],
        "OPTIONS": {
            "KEEP_MESSAGES": True,  # shows the messages of ended actors
            # Keeps the tasks of `make demo` long enough to look at them.
            "RETENTION": {"SUCCESSFUL": 7 * 24 * 3600, "FAILED": 30 * 24 * 3600},
        },
    },
}

# Pictures and logs are stored here, beside the embedded database.
DEMO_FOLDER = Path(env.str("DEMO_FOLDER", default="") or demo_folder())
MEDIA_ROOT = DEMO_FOLDER / "media"
STATIC_URL = "static/"
# Permits uploads of many small photos.
DATA_UPLOAD_MAX_NUMBER_FILES = 500

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True

# Without DEBUG, Django would mail tracebacks to ADMINS, which is empty.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {
        "django.request": {"handlers": ["stderr"], "level": "ERROR"},
        "demo_project": {"level": "INFO"},  # shown on the pages of tasks
    },
}
