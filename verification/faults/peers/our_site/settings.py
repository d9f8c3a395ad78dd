"""The site of jobqueue; `DATABASE_URL` comes from the environment."""

import environ

from verification.faults.peers.sides import TIMEOUT_SECONDS

SECRET_KEY = "trust"
USE_TZ = True
INSTALLED_APPS = ["jobqueue", "verification.faults.peers.our_site"]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
TASKS = {
    "default": {
        "BACKEND": "jobqueue.backend.JobQueueBackend",
        "QUEUES": [],
        "OPTIONS": {"HEARTBEAT_TIMEOUT": TIMEOUT_SECONDS},
    }
}
