"""Expressions of schedules in words of the active language."""

from __future__ import annotations

import re
from calendar import day_name, month_name
from datetime import timedelta
from functools import lru_cache
from typing import Final

from django.utils.dates import MONTHS, WEEKDAYS
from django.utils.formats import number_format
from django.utils.translation import get_language, gettext_lazy

UNITS: Final = (
    (86400, gettext_lazy("Every day"), gettext_lazy("Every %(number)s days")),
    (3600, gettext_lazy("Every hour"), gettext_lazy("Every %(number)s hours")),
    (60, gettext_lazy("Every minute"), gettext_lazy("Every %(number)s minutes")),
)
EVERY_SECOND: Final = (1, gettext_lazy("Every second"), gettext_lazy("Every %(number)s seconds"))
LOCALES: Final = {"de": "de_DE", "fr": "fr_FR"}  # of cron-descriptor, for the languages that jobqueue has
ENGLISH: Final = "en_US"
NAMES: Final = {  # of days and months; Django has them in each language
    **dict(zip(day_name, WEEKDAYS.values(), strict=True)),
    **dict(zip(list(month_name)[1:], MONTHS.values(), strict=True)),
}


def fields_in_words(fields: str) -> str:
    """Describe the fields of a cron expression: "At 08:00, Monday through Friday"."""
    language = (get_language() or "").partition("-")[0]
    return _described(fields, LOCALES.get(language, ENGLISH))


def interval_in_words(interval: timedelta) -> str:
    """Describe an interval: "Every 5 minutes"."""
    seconds = interval.total_seconds()
    length, singular, plural = next((unit for unit in UNITS if seconds % unit[0] == 0), EVERY_SECOND)
    count = seconds / length
    return str(singular) if count == 1 else plural % {"number": number_format(f"{count:g}")}


@lru_cache(maxsize=1000)  # it takes 0.4 ms, and a list shows many
def _described(fields: str, locale: str) -> str:
    # Imported here: executors do not need it.
    from cron_descriptor import ExpressionDescriptor, Options

    options = Options()
    options.use_24hour_time_format = True
    options.locale_code = locale
    text = str(ExpressionDescriptor(fields, options).get_description())
    if locale == ENGLISH:
        return text
    # The names of days and months are those of the process's locale.
    return re.sub("|".join(NAMES), lambda name: str(NAMES[name[0]]), text)
