"""
What code calls to change the queue: views, tasks, the admin, commands, the backend.

Each function takes the backend's alias where it matters; ids are UUIDs or their text. Changes are
made in the caller's transaction, hints and wake-ups after its commit.
"""

from jobqueue.api.backends import BATCH, aliases, declared_queues
from jobqueue.api.hints import CANCEL_NOTICE, notices
from jobqueue.api.mail import asend, asend_many, id_from, receivers, send, send_many
from jobqueue.api.switches import MOST_RUNNING, alimit, apause, aresume, command, limit, pause, resume
from jobqueue.api.tasks import (
    acancel,
    arequeue,
    awake,
    cancel,
    enqueue,
    enqueue_batches,
    enqueue_once,
    requeue,
    wake,
)

__all__ = [
    "BATCH",
    "CANCEL_NOTICE",
    "MOST_RUNNING",
    "acancel",
    "aliases",
    "alimit",
    "apause",
    "arequeue",
    "aresume",
    "asend",
    "asend_many",
    "awake",
    "cancel",
    "command",
    "declared_queues",
    "enqueue",
    "enqueue_batches",
    "enqueue_once",
    "id_from",
    "limit",
    "notices",
    "pause",
    "receivers",
    "requeue",
    "resume",
    "send",
    "send_many",
    "wake",
]
