"""The site of the benchmarks, without heartbeats while it is measured."""

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import TASKS

TASKS["default"] |= {"OPTIONS": {"HEARTBEAT_TIMEOUT": 86400.0}}
