"""The fixtures of the tests of the Python and SQL interfaces."""

from tests.interfaces import *  # noqa: F403
