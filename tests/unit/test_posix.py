"""A system without POSIX, such as Windows: a site works there, and only executors do not run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jobqueue.values import posix

SITE = """
import asyncio, concurrent.futures.thread, logging, random, subprocess, tempfile, threading  # their POSIX branches
import asgiref.sync, psycopg, django.core.management, django.test.utils
import os, select, signal, sys
for name in sys.argv[1:]:
    module, _, attribute = name.partition(".")
    delattr(sys.modules[module], attribute)
sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["pwd"] = sys.modules["grp"] = None
from django.conf import settings
settings.configure(
    SECRET_KEY="x",
    ROOT_URLCONF="jobqueue.urls",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                    "django.contrib.sessions", "django.contrib.messages", "jobqueue"],
    TASKS={"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.auth.middleware."
                "AuthenticationMiddleware", "django.contrib.messages.middleware.MessageMiddleware"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
        "context_processors": ["django.template.context_processors.request",
                               "django.contrib.auth.context_processors.auth",
                               "django.contrib.messages.context_processors.messages"]}}],
)
import django
django.setup()
from django.core.management import call_command
from django.core.management.base import CommandError
from jobqueue import task, testing
call_command("check", stdout=open(os.devnull, "w"))
call_command("migrate", verbosity=0)
@task(name="double")
def double(n): return 2 * n
@task(name="later")
async def later(n): return 2 * n
results = [double.enqueue(1), later.enqueue(1)]
testing.run_until_idle()
for result in results:
    result.refresh()
print([result.return_value for result in results])
call_command("jobqueue", "status", stdout=open(os.devnull, "w"))
import jobqueue.admin
from jobqueue.contrib import embedded
assert embedded.start("application") == "application"
for options in ({}, {"processes": 2}, {"reload": True}):
    try:
        call_command("run_executors", **options)
    except CommandError as error:
        print(error)
from django.core.management import load_command_class
load_command_class("jobqueue", "run_executors").create_parser("manage.py", "run_executors").format_help()
"""
WINDOWS = [f"{module.__name__}.{name}" for module, names in posix.NEEDED.items() for name in names]


@pytest.mark.parametrize(
    "lost", [WINDOWS, ["os.fork"], ["os.register_at_fork"], ["signal.SIGHUP"]], ids=lambda lost: "-".join(lost)[:40]
)
def test_site_works_without_posix_names(lost: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "JOBQUEUE_"))}
    command = [sys.executable, "-W", "ignore", "-c", SITE, *lost]

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=os.getcwd())

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("executor.unsupported lacks=") == 1
    assert "Traceback" not in done.stderr
    first, *refusals = done.stdout.splitlines()
    assert first == "[2, 2]"
    sentence = "run_executors needs a POSIX system, such as Linux or macOS: this one lacks "
    assert len(refusals) == 3
    assert all(line.startswith(sentence) for line in refusals)
    assert all(name in refusals[0] for name in lost)


def test_this_system_can_run_executors() -> None:
    assert posix.missing() == []
