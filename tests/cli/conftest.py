"""The fixtures of the tests of the command line."""

from tests.interfaces import *  # noqa: F403
