"""The admin in German and in French."""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from django.contrib.auth.models import Permission
from django.utils import translation

from jobqueue.admin.charts import decade, per_minute
from jobqueue.declarations import registry
from jobqueue.engine import Count
from jobqueue.operations.limits import rate_words
from jobqueue.operations.task.reports import progress_text
from jobqueue.schedules.describe import interval_in_words
from jobqueue.templatetags.jobqueue_admin import register
from tests.admin.pages import BOTH
from tests.admin.test_overview import histogram
from tests.factories import PeriodFactory, ScheduleFactory, error
from tests.tasks import add
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
        self.strings = set()
        self.in_code = False
        self.feed(content.replace("<wbr>", ""))  # names are not cut into words

    def handle_starttag(self, tag, attrs):
        self.in_code = tag == "code"
        self.strings |= {text for name, text in attrs if name in ("title", "aria-label", "placeholder")}

    def handle_endtag(self, tag):
        self.in_code = False

    def handle_data(self, data):
        if self.cdata_elem is None and not self.in_code:  # neither a script nor a style
            self.strings.add(data.strip())


@pytest.fixture
def read(show, language, monkeypatch):
    """Return the texts of a page. None of them is a string of the catalogue that could be translated."""
    monkeypatch.setattr(registry, "by_name", lambda: {"tests.tasks.add": add})  # names of other tests are words, too
    english = {entry.singular for entry in read_catalogue(language) if entry.singular not in entry.translations}
    translations = {text for entry in read_catalogue(language) for text in entry.translations}

    def texts(page):
        strings = Texts(show(page)).strings
        assert strings & (english - translations) == set()
        return strings

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
    messages = errors(expression="99 * * * *", shown_task="tests.tasks.add", **{"argument-a": "1"})
    assert expected[language][1] in messages
    for english in (" must ", "not valid", "needs", "Ensure"):
        assert english not in messages


NUMBERS = [  # in English, in German; the French separators are a no-break space and a comma
    (lambda: str(Count(3000)), "3,000", "3.000"),
    (lambda: str(Count(10_000, is_more=True)), "10,000+", "10.000+"),
    (lambda: register.filters["thousands"](1_234_567), "1,234,567", "1.234.567"),
    (lambda: per_minute(0.3), "0.3", "0,3"),
    (lambda: per_minute(1 / 15), "0.067", "0,067"),
    (lambda: per_minute(1.96), "2", "2"),
    (lambda: per_minute(9.96), "10", "10"),
    (lambda: per_minute(1500.4), "1,500", "1.500"),
    (lambda: decade(1000.0).removesuffix(" s"), "1,000", "1.000"),
    (lambda: rate_words(3000, 60.0).split(" ")[0], "3,000", "3.000"),
    (lambda: progress_text(1234.5), "1,234.50", "1.234,50"),
    (lambda: progress_text(1234.0), "1,234", "1.234"),
    (lambda: re.findall(r"1\S5", interval_in_words(timedelta(seconds=1.5)))[0], "1.5", "1,5"),
]


@pytest.mark.parametrize(("show_number", "english", "german"), NUMBERS)
def test_numbers_have_the_separators_of_the_language(show_number, english, german):
    expected = {"en-us": english, "de": german, "fr": german.replace(".", "\xa0")}
    for code, text in expected.items():
        with translation.override(code):
            assert show_number() == text
    with translation.override(None, deactivate=True):  # as on the command line
        assert show_number() == english


def test_pages_have_the_numbers_of_the_language(show, backend, language):
    period = {"scope": "queue", "name": "emails", "completed": 2999, "dead": 1, "attempts": 3000}
    PeriodFactory.create(backend=backend, using=backend, **period)

    content = show("queue/summary/", name="emails")

    assert {"de": "<dd>3.000</dd>", "fr": "<dd>3\xa0000</dd>"}[language] in content
    assert "<dd>0,0 %</dd>" in content


def test_waits_above_an_hour_are_in_german_and_french(backend, read, language):
    PeriodFactory.create(backend=backend, using=backend, attempts=10, waits=histogram(_7=9, _25000=1))

    expected = {
        "de": {
            "Median der Wartezeit höchstens 8 s; mehr als 5 % warteten über 60 min.",
            "über 60 min",
        },
        "fr": {
            "Attente médiane d’au plus 8 s\N{NO-BREAK SPACE}; plus de 5 % ont attendu plus de 60 min.",
            "plus de 60 min",
        },
    }  # fmt: skip
    assert expected[language] <= read("")
