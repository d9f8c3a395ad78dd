"""A child of the supervisor is a child until its end."""

import subprocess
import sys

SCRIPT = """
import os
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "jobqueue"])
django.setup()
from jobqueue.executor.signals import SignalPipe
from jobqueue.executor.supervisor import Fork

def spoil(number, signals, on_dismissed):
    os.closerange(3, 512)
    return 7

launch, supervisor = Fork(spoil, SignalPipe()), os.getpid()
try:
    child = launch(0)
except OSError:
    os._exit(1)
print(os.getpid() == supervisor, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_child_whose_descriptors_were_closed_ends_and_is_no_second_supervisor() -> None:
    """It could not say why it ended, and went on in the supervisor's loop with children of its own."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)

    assert ran.stdout == "True 7\n"
