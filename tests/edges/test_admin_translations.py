"""The admin in German and in French."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from django.contrib.auth.models import Permission
from django.utils import translation

from tests.edges.admin import BOTH
from tests.factories import ScheduleFactory, error
from tests.unit.test_translations import read_catalogue

pytestmark = BOTH


@pytest.fixture(params=["de", "fr"])
def language(request):
    with translation.override(request.param):
        yield request.param


class Texts(HTMLParser):
    """The texts of a page that a person reads or hears, without names and values in <code>."""

    def __init__(self, content):
        super().__init__()
        self.found = set()
        self.in_code = False
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.in_code = tag == "code"
        self.found |= {text for name, text in attrs if name in ("title", "aria-label", "placeholder")}

    def handle_endtag(self, tag):
        self.in_code = False

    def handle_data(self, data):
        if self.cdata_elem is None and not self.in_code:  # neither a script nor a style
            self.found.add(data.strip())


@pytest.fixture
def read(show, language):
    """Return the texts of a page. None of them is a string of the catalogue that could be translated."""
    english = {entry.singular for entry in read_catalogue(language) if entry.singular not in entry.translations}
    translations = {text for entry in read_catalogue(language) for text in entry.translations}

    def texts(page):
        found = Texts(show(page)).found
        assert found & (english - translations) == set()
        return found

    return texts


def test_list_is_in_german_and_french(make, read, language):
    make(failed=True, errors=[error()])
    make(scheduled=True)

    texts = read("task/")

    expected = {
        "de": {"Aufgaben", "Fehlgeschlagen", "Geplant"},
        "fr": {"Tâches", "Échouée", "Planifiée"},
    }
    assert expected[language] <= texts


def test_page_of_a_task_is_in_german_and_french(make, read, language):
    texts = read(make())

    explanation = {
        "de": "Kein Executor bedient die Warteschlange default.",
        "fr": "Aucun exécuteur ne traite la file d’attente default.",
    }
    assert explanation[language] in " ".join(texts)


def test_each_other_page_is_in_german_and_french(make, make_executor, backend, read):
    make(running=True, executor_id=make_executor().pk)
    ScheduleFactory.create(backend=backend, using=backend)

    for page in ("", "queue/", "executor/", "schedule/", "limit/", "task/failures/", "task/enqueue/"):
        assert read(page)


def test_errors_of_forms_are_in_german_and_french(client, staff, language, backend):
    staff.user_permissions.add(Permission.objects.get(codename="add_schedule"))
    typed = {
        "name": "report", "task": "tests.tasks.add", "kind": "cron", "timezone": "Mars", "unit": "60",
        "overlap": "skip", "catch_up": "all", "max_catch_up": "0", "priority": "101",
    }  # fmt: skip

    def errors(**changes):
        response = client.post("/admin/jobqueue/schedule/add/", {**typed, "backend": backend, **changes})
        return " ".join(text for texts in response.context["form"].errors.values() for text in texts)

    expected = {
        "de": ("'x' hat 1 Felder; erwartet werden Minute,", "Das Feld „minute“ von '99 * * * *' ist ungültig;"),
        "fr": (
            "'x' a 1 champs\xa0; attendu\xa0: minute,",
            "Le champ «\xa0minute\xa0» de '99 * * * *' n’est pas valide",
        ),
    }
    assert expected[language][0] in errors(expression="x")
    found = errors(expression="99 * * * *", shown_task="tests.tasks.add", **{"argument-a": "1"})
    assert expected[language][1] in found
    for english in (" must ", "not valid", "needs", "Ensure"):
        assert english not in found
