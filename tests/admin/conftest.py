"""The fixtures of the tests of the admin."""

from tests.interfaces import *  # noqa: F403
