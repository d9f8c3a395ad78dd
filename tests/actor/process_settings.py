"""Settings of the processes that acceptance tests start: OPTIONS of the default backend come from the environment."""

from tests.settings import *  # noqa: F403
from tests.settings import TASKS, env

TASKS["default"]["OPTIONS"] = env.json("ACTOR_OPTIONS", default={})
