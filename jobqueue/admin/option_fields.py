"""The fields of options that the forms of tasks and of schedules have."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy

from jobqueue.conf.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY


def priority_field() -> forms.IntegerField:
    return forms.IntegerField(
        label=gettext_lazy("Priority"),
        required=False,
        min_value=TASK_MIN_PRIORITY,
        max_value=TASK_MAX_PRIORITY,
        help_text=gettext_lazy("From -100 to 100. Higher runs earlier."),
    )


def max_attempts_field() -> forms.IntegerField:
    return forms.IntegerField(label=gettext_lazy("Maximum attempts"), required=False, min_value=1)
