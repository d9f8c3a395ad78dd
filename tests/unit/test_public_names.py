"""The table of public names in docs/reference.md lists exactly the names in the code."""

import argparse
import re
from pathlib import Path

import pytest
from django.core.management import load_command_class
from django.db import connection
from django.urls import get_resolver

import jobqueue
from jobqueue import api, backend, exceptions, models, testing
from jobqueue.api import schedules
from jobqueue.conf.options import KEYS
from jobqueue.contrib import celery, embedded, middleware
from jobqueue.http import progress

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
ROW = re.compile(r"^\| (.+?) \| (`.+`) \|$", re.MULTILINE)
TABLE = {
    where.strip("`"): set(re.findall(r"`([\w-]+)`", names))
    for where, names in ROW.findall(REFERENCE.read_text().partition("## Public names")[2])
}


def classes_of_exceptions() -> set[str]:
    classes = [value for value in vars(exceptions).values() if isinstance(value, type)]
    return {value.__name__ for value in classes if value.__module__ == exceptions.__name__}


def verbs() -> set[str]:
    parser = load_command_class("jobqueue", "jobqueue").create_parser("manage.py", "jobqueue")
    (verbs,) = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return set(verbs or ())


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("jobqueue", set(jobqueue.__all__)),
        ("jobqueue.api", set(api.__all__)),
        ("jobqueue.testing", set(testing.__all__)),
        ("jobqueue.contrib.celery", set(celery.__all__)),
        ("jobqueue.contrib.embedded", set(embedded.__all__)),
        (
            "jobqueue.exceptions",
            classes_of_exceptions(),
        ),
        ("OPTIONS", set(KEYS)),
        ("manage.py jobqueue", verbs()),
        ("URL names", {getattr(pattern, "name", None) for pattern in get_resolver("jobqueue.urls").url_patterns}),
    ],
)
def test_reference_lists_all_public_names(where: str, names: set[str]) -> None:
    assert TABLE[where] == names


def test_every_public_name_exists() -> None:
    modules = {
        "jobqueue": jobqueue,
        "jobqueue.api.schedules": schedules,
        "jobqueue.models": models,
        "jobqueue.backend": backend,
        "jobqueue.contrib.middleware": middleware,
        "jobqueue.http.progress": progress,
    }
    missing = [name for where, module in modules.items() for name in TABLE[where] if not hasattr(module, name)]
    assert missing == []


@pytest.mark.django_db
def test_sql_functions_for_callers_exist() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT proname FROM pg_proc WHERE proname LIKE 'jobqueue%'")
        assert {name for (name,) in cursor.fetchall()} >= TABLE["SQL functions"]
