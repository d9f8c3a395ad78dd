"""The site of jobqueue; `DATABASE_URL` comes from the environment."""

import environ

from benchmarks.peers.crashes.sides import TIMEOUT_SECONDS

SECRET_KEY = "benchmark"
USE_TZ = True
INSTALLED_APPS = ["jobqueue", "benchmarks.peers.crashes.our_site"]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
TASKS = {
    "default": {
        "BACKEND": "jobqueue.backend.JobQueueBackend",
        "QUEUES": [],
        "OPTIONS": {"HEARTBEAT_TIMEOUT": TIMEOUT_SECONDS},
    }
}
