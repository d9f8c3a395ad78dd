"""
Functions that change the queue, for views, tasks, the admin and commands.

`tasks` enqueues, cancels, requeues and wakes. `messages` sends. `queues` pauses and limits. `executors` commands.
`notifications` does what follows a commit. `backends` finds the backend of an id.

Each function takes the backend's alias where it matters. Ids are UUIDs or their text. Changes are made in the
caller's transaction, notifications and wake-ups after its commit. `__all__` is public.
"""

from jobqueue.api.backends import aliases as aliases
from jobqueue.api.backends import declared_queues as declared_queues
from jobqueue.api.executors import command
from jobqueue.api.messages import asend, asend_many, send, send_many
from jobqueue.api.queues import alimit, apause, aresume, limit, pause, resume
from jobqueue.api.tasks import acancel, arequeue, awake, cancel, requeue, wake
from jobqueue.records import Command

__all__ = [
    "Command",
    "acancel",
    "alimit",
    "apause",
    "arequeue",
    "aresume",
    "asend",
    "asend_many",
    "awake",
    "cancel",
    "command",
    "limit",
    "pause",
    "requeue",
    "resume",
    "send",
    "send_many",
    "wake",
]
