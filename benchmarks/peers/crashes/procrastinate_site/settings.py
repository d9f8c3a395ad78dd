"""The site of procrastinate; `DATABASE_URL` comes from the environment."""

import environ

from benchmarks.peers.crashes.sides import BEAT_SECONDS, POLL_SECONDS, TIMEOUT_SECONDS

SECRET_KEY = "benchmark"
USE_TZ = True
INSTALLED_APPS = ["procrastinate.contrib.django", "benchmarks.peers.crashes.procrastinate_site"]
DATABASES = {"default": environ.Env().db_url("DATABASE_URL")}
PROCRASTINATE_WORKER_DEFAULTS = {
    "update_heartbeat_interval": BEAT_SECONDS,
    "stalled_worker_timeout": TIMEOUT_SECONDS,
    "fetch_job_polling_interval": POLL_SECONDS,
}
