"""The timing of a schedule as fields of a form, and the preview of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Final

from django import forms
from django.conf import settings
from django.utils.text import capfirst
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.engine import engine_for
from jobqueue.operations.schedules import UpcomingTick, upcoming_tick
from jobqueue.schedules.expressions import (
    EPOCH,
    MAX_EXPRESSION,
    Cron,
    Every,
    ValueProblem,
    moment_problems,
    upcoming,
)
from jobqueue.schedules.rows import from_row_time

CRON, INTERVAL = "cron", "interval"
LENGTHS: Final = (  # of the units, in seconds
    (1, gettext_lazy("seconds")),
    (60, gettext_lazy("minutes")),
    (3600, gettext_lazy("hours")),
    (86400, gettext_lazy("days")),
)
MAX_SECONDS: Final = 1e12  # a timedelta holds no more than 8.6e13. Schedules and tasks take less, and refuse this.
PREVIEWED: Final = 5  # ticks
PLAIN: Final = {"autocomplete": "off", "spellcheck": "false"}


def moment_field(**options: Any) -> forms.DateTimeField:
    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": 1}, format="%Y-%m-%dT%H:%M:%S")
    return forms.DateTimeField(required=False, widget=widget, **options)


def seconds_field(**options: Any) -> forms.FloatField:
    return forms.FloatField(required=False, widget=forms.NumberInput(attrs={"step": "any"}), **options)


class TimingForm(forms.Form):
    """The timing of a schedule: the part of the form that the preview reads."""

    kind = forms.ChoiceField(
        label=gettext_lazy("Runs"),
        choices=[(CRON, gettext_lazy("at the times of a cron expression")), (INTERVAL, gettext_lazy("at an interval"))],
        widget=forms.RadioSelect,
        initial=CRON,
    )
    expression = forms.CharField(
        label=gettext_lazy("Cron expression"),
        required=False,
        widget=forms.TextInput(attrs={**PLAIN, "maxlength": MAX_EXPRESSION}),
        help_text=gettext_lazy(
            "Minute, hour, day of the month, month, day of the week. “0 8 * * mon-fri” is 08:00, Monday to Friday. "
            "With six fields, the first one is for seconds. Names such as “@daily” work, too."
        ),
    )
    timezone = forms.CharField(
        label=gettext_lazy("Time zone"),
        required=False,
        initial=lambda: settings.TIME_ZONE,
        widget=forms.TextInput(attrs={**PLAIN, "list": "jq-zones"}),
        help_text=gettext_lazy("The cron expression is in this time zone, such as Europe/Berlin."),
    )
    interval = seconds_field(label=gettext_lazy("Every"))
    unit = forms.TypedChoiceField(label=gettext_lazy("Unit"), choices=LENGTHS, coerce=int, initial=60)
    anchor = moment_field(
        label=gettext_lazy("Counted from"),
        help_text=gettext_lazy("The moment of one tick. If it is empty, ticks count from the start of 1970 in UTC."),
    )
    starts_at = moment_field(label=gettext_lazy("Starts at"), help_text=gettext_lazy("No tick is earlier."))
    ends_at = moment_field(label=gettext_lazy("Ends at"), help_text=gettext_lazy("No tick is later."))

    required_css_class = "required"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zone = _("In the time zone %(zone)s.") % {"zone": get_current_timezone_name()}
        for name in ("anchor", "starts_at", "ends_at"):
            self.fields[name].help_text = f"{self.fields[name].help_text} {zone}"

    def clean(self) -> dict[str, Any]:
        """Show each problem beside its field. A field that could not be read has an error already."""
        for problem in self.problems():
            if problem.field not in self.errors:
                self.add_error(problem.field if problem.field in self.fields else None, sentence(problem))
        return self.cleaned_data

    def problems(self) -> Iterable[ValueProblem]:
        yield from self.expression_value().problems()
        for name in ("starts_at", "ends_at"):
            yield from moment_problems(name, self.moment(name))

    def expression_value(self) -> Cron | Every:
        """Return the expression, which may be invalid."""
        values = self.cleaned_data
        if values.get("kind") != INTERVAL:
            return Cron(values.get("expression", ""), values.get("timezone", ""))
        interval = span((values.get("interval") or 0) * values.get("unit", 1))
        return Every(interval, anchor=self.moment("anchor") or EPOCH)

    def moment(self, name: str) -> datetime | None:
        return from_row_time(self.cleaned_data.get(name))


@dataclass(frozen=True)
class Preview:
    """A form's schedule as a sentence and as its next ticks."""

    sentence: str = ""  # the expression as a sentence
    timezone: str = ""  # of the ticks
    ticks: tuple[UpcomingTick, ...] = ()  # the next ones
    problems: tuple[str, ...] = ()  # sentences; with one there are no ticks
    is_empty: bool = False  # no expression was typed

    @classmethod
    def of(cls, data: Mapping[str, Any], backend: str) -> Preview:
        """Return the preview of what a form contains. The ticks are those after now, by the clock of the backend."""
        form = TimingForm(data)
        if not data.get("interval" if data.get("kind") == INTERVAL else "expression"):
            return cls(is_empty=True)
        if not form.is_valid():
            errors = [(form[name].label, text) for name, texts in form.errors.items() for text in texts]
            return cls(problems=tuple(f"{label}: {text}" for label, text in errors))
        expression, starts_at, ends_at = form.expression_value(), form.moment("starts_at"), form.moment("ends_at")
        now = from_row_time(engine_for(backend).db.now())
        after = max(now, starts_at - timedelta.resolution) if starts_at else now
        ticks = takewhile(lambda tick: not ends_at or tick <= ends_at, upcoming(expression, after, PREVIEWED))
        zone = getattr(expression, "timezone", "")
        return cls(expression.describe(), zone, tuple(upcoming_tick(expression, tick) for tick in ticks))


def sentence(problem: ValueProblem) -> str:
    """Return a problem as a sentence, translated if it is a frequent one. Beside its field, it need not name it."""
    name, text = f"{problem.field} must ", problem.filled_in(_(problem.text))
    text = f"it must {text.removeprefix(name)}" if text.startswith(name) else text
    return f"{capfirst(text)}."


def span(seconds: float) -> timedelta:
    return timedelta(seconds=max(-MAX_SECONDS, min(seconds, MAX_SECONDS)))


def without_fraction(seconds: float | None) -> float | None:
    """Return a whole number without its fraction, for a field."""
    return int(seconds) if seconds is not None and seconds == int(seconds) else seconds
