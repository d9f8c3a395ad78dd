"""The fixtures and hooks of tests/ and verification/."""

from tests.fixtures import *  # noqa: F403
