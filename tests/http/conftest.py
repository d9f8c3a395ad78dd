"""The fixtures of the tests of HTTP."""

from tests.interfaces import *  # noqa: F403
