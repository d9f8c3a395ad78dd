"""The form of a schedule. Its fields read numbers, times and JSON. `Declaration` decides what is valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from django import forms
from django.db.models import TextChoices
from django.http import QueryDict
from django.utils.dateparse import parse_datetime
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from msgspec import UNSET
from msgspec.structs import asdict

from jobqueue import api
from jobqueue.admin.argument_fields import ArgumentsForm, Call
from jobqueue.admin.option_fields import max_attempts_field, priority_field
from jobqueue.admin.timing_form import (
    CRON,
    INTERVAL,
    LENGTHS,
    PLAIN,
    TimingForm,
    seconds_field,
    sentence,
    span,
    without_fraction,
)
from jobqueue.api import schedules
from jobqueue.declarations import registry
from jobqueue.declarations.options import StoredRunOptions
from jobqueue.declarations.schedules import MAX_CATCH_UP, MAX_JITTER, MAX_NAME, Declaration
from jobqueue.models import Schedule
from jobqueue.operations.backends import options_of
from jobqueue.schedules.expressions import EPOCH, Cron, Every, ValueProblem
from jobqueue.schedules.rows import parse_expression
from jobqueue.values.json import decode
from jobqueue.values.records import NewTask

FIXED: Final = ("name", "backend")  # of a schedule that exists
POLICY: Final = ("overlap", "catch_up", "max_catch_up", "catch_up_window", "jitter")
MIN_SECONDS: Final = 0.001
SHOWN_OPTIONS: Final = ("queue_name", "priority", "max_attempts", "timeout", "expires", "key")


def _choices(values: type[TextChoices]) -> list[tuple[str, Any]]:
    """Return the choices with the names that sentences about them use."""
    return [(value, format_lazy("{} ({})", label, value)) for value, label in values.choices]


class ScheduleForm(TimingForm):
    """
    Create a schedule, or change the one of `row`. It keeps its name and its backend.

    may_see: whether the user may see the row's arguments. Otherwise, neither they nor the task can be changed. typed:
    what the fields show, unchecked. arguments: the form of the arguments; None without a task, or if they are hidden.
    """

    name = forms.CharField(
        label=gettext_lazy("Name"),
        widget=forms.TextInput(attrs={**PLAIN, "maxlength": MAX_NAME}),
        help_text=gettext_lazy("No other schedule of the backend may have this name. You cannot change it later."),
    )
    task = forms.ChoiceField(label=gettext_lazy("Task"))
    backend = forms.ChoiceField(label=gettext_lazy("Backend"), required=False)
    queue_name = forms.CharField(label=gettext_lazy("Queue"), required=False)
    priority = priority_field()
    max_attempts = max_attempts_field()
    timeout = seconds_field(
        label=gettext_lazy("Timeout (in seconds)"),
        min_value=MIN_SECONDS,
        help_text=gettext_lazy("How long one attempt may run."),
    )
    expires = seconds_field(
        min_value=MIN_SECONDS,
        label=gettext_lazy("Expires after (in seconds)"),
        help_text=gettext_lazy(
            "The time starts when the task is enqueued. After this time, no attempt starts, and the task fails."
        ),
    )
    key = forms.CharField(
        label=gettext_lazy("Key"),
        required=False,
        help_text=gettext_lazy("While a task with this key has not ended, ticks are skipped."),
    )
    overlap = forms.ChoiceField(
        label=gettext_lazy("Overlap"),
        choices=_choices(Schedule.Overlap),
        help_text=gettext_lazy("What happens to a tick if the task of an earlier tick has not ended."),
    )
    catch_up = forms.ChoiceField(
        label=gettext_lazy("Catch up"),
        choices=_choices(Schedule.CatchUp),
        help_text=gettext_lazy("What happens to ticks that were missed while no executor was running."),
    )
    max_catch_up = forms.IntegerField(
        label=gettext_lazy("Maximum missed ticks"),
        min_value=1,
        max_value=MAX_CATCH_UP,
        initial=100,
        help_text=gettext_lazy(
            "Only with “Run each missed tick”: how many of them run at most. These are the newest ones."
        ),
    )
    catch_up_window = seconds_field(
        label=gettext_lazy("Catch up within (in seconds)"),
        min_value=0,
        help_text=gettext_lazy(
            "Ticks that were missed longer ago than this are skipped. If it is empty, there is no limit."
        ),
    )
    jitter = seconds_field(
        label=gettext_lazy("Jitter (in seconds)"),
        min_value=0,
        max_value=int(MAX_JITTER.total_seconds()),
        help_text=gettext_lazy(
            "The longest delay. All ticks of a schedule have the same delay, which depends on its name."
        ),
    )

    def __init__(
        self,
        data: QueryDict | None = None,
        *,
        row: Schedule | None = None,
        may_see: bool = True,
        typed: Mapping[str, Any] | None = None,
    ) -> None:
        self.row = row
        self.stored = StoredTask() if row is None else StoredTask.of(row)
        self.hides_arguments = row is not None and not may_see
        own = {} if row is None else read_initial(row, self.stored)
        fixed = FIXED if row else ()
        fixed = (*fixed, "task") if self.hides_arguments else fixed
        super().__init__(data, initial={**own, **(typed or {}), **{name: own[name] for name in fixed}})
        self._set_choices()
        for name in self.fields.keys() & {*fixed}:
            self.fields[name].disabled = True
        self.task_type = str(self["task"].value() or "")
        self.function = registry.offered().get(self.task_type)
        self.shown_task = str(self.data.get("shown_task", self.task_type))
        self.arguments = self._arguments_form()
        self.version = self.data.get("version") or (row and row.updated_at.isoformat())

    def _set_choices(self) -> None:
        aliases = api.aliases()
        for name, values in {"task": registry.offered(), "backend": aliases}.items():
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [("", "---------"), *((value, value) for value in values)]
        if len(aliases) == 1:
            del self.fields["backend"]

    def _arguments_form(self) -> ArgumentsForm | None:
        parameters = registry.parameters(self.task_type)
        if parameters is None or self.hides_arguments:
            return None
        is_shown = self.shown_task == self.task_type or not parameters.signature.parameters
        return ArgumentsForm(
            self.data if self.is_bound and is_shown else None,
            parameters=parameters,
            stored=self.stored.call if self._keeps_task else None,
            patterns=options_of(self.row.backend).redact if self.row else (),
            typed=self.initial if self.initial.get("shown_task") == self.task_type else None,
        )

    @property
    def policy_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in POLICY]

    @property
    def option_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in ("backend", *SHOWN_OPTIONS) if name in self.fields]

    @property
    def _keeps_task(self) -> bool:
        return self.row is not None and self.row.task_type == self.task_type

    def is_valid(self) -> bool:
        return super().is_valid() and (self.arguments is None or self.arguments.is_valid())

    def problems(self) -> Iterable[ValueProblem]:
        """Yield the problems of the declaration. Those of the arguments become errors of their own form."""
        if self.arguments is not None and not self.arguments.is_bound:
            yield ValueProblem("task", _("enter the arguments of this task"))
            return
        if self.row is None and self._is_taken():
            yield ValueProblem("name", _("there is a schedule with this name already"))
        for problem in self.declaration().problems():
            if problem.field != "args" or self.arguments is None:
                yield problem
            elif self.arguments.is_valid():
                self.arguments.add_error(None, sentence(problem))

    def _is_taken(self) -> bool:
        """Return whether a schedule has the name. create() decides again."""
        backend = self.declaration().backend
        rows = Schedule.objects.using(options_of(backend).database).filter(backend=backend, retired_at=None)
        return rows.filter(name=self.cleaned_data.get("name", "")).exists()

    def declaration(self) -> Declaration:
        """Return the schedule. Before `is_valid()`, it may be invalid."""
        values = self.cleaned_data
        args, kwargs = self._call()
        return Declaration(
            name=values.get("name", ""),
            task=self.function,  # type: ignore[arg-type]  # None is a problem of the declaration
            expression=self.expression_value(),
            location="",
            args=args,
            kwargs=kwargs,
            overlap=values.get("overlap", ""),
            catch_up=values.get("catch_up", ""),
            max_catch_up=values.get("max_catch_up"),  # type: ignore[arg-type]
            catch_up_window=values.get("catch_up_window"),
            jitter=values.get("jitter") or 0,
            starts_at=self.moment("starts_at"),
            ends_at=self.moment("ends_at"),
            task_options=self._task_options(),
        )

    def _call(self) -> Call:
        if self.arguments is None:
            return self.stored.call
        return self.arguments.call() if self.arguments.is_valid() else ((), {})

    def _task_options(self) -> dict[str, Any]:
        """Return the options that differ from the task's, with those that the form does not show."""
        values = self.cleaned_data
        options = {name: values[name] for name in SHOWN_OPTIONS if values.get(name) not in (None, "")}
        if "expires" in options:
            options["expires"] = span(options["expires"])
        stored = self.stored.options if self._keeps_task else {}
        kept = {name: value for name, value in stored.items() if name not in SHOWN_OPTIONS}
        backend = values.get("backend") or (self.row.backend if self.row else "")
        return {**kept, **options, **({"backend": backend} if backend else {})}

    def changes(self) -> str:
        """Return which fields were changed, for the log. Readers of it may lack the permission to see values."""
        arguments = self.arguments.changed_data if self.arguments else []
        labels = [*(str(self[name].label) for name in self.changed_data), *arguments]
        return _("Changed: %(fields)s.") % {"fields": ", ".join(labels) or _("nothing")}

    def save(self) -> Schedule:
        """
        Create or change the schedule.

        Raises ScheduleChanged if another user changed it after the page was loaded, ScheduleNotFound or ValueError.
        """
        if self.row is None:
            return schedules.create(self.declaration())
        return schedules.change(self.declaration(), unchanged_since=parse_datetime(self.version or ""))


@dataclass(frozen=True)
class StoredTask:
    """The tasks of a row."""

    call: Call = ((), {})  # args and kwargs
    options: Mapping[str, Any] = field(default_factory=dict)  # those that differ from the declared task's

    @classmethod
    def of(cls, row: Schedule) -> StoredTask:
        """Read the template of a row. Empty if it cannot be read."""
        try:
            task = msgspec.convert({**row.new_task, "id": UUID(int=0)}, NewTask)
            args, kwargs, metadata = map(decode, (task.args, task.kwargs, task.metadata))
            changed = asdict(msgspec.json.decode(task.options, type=StoredRunOptions))
        except (ValueError, TypeError):
            return cls()
        expires = task.expires_after_seconds
        options = {
            "queue_name": task.queue_name,
            "priority": task.priority,
            "key": task.key,
            "metadata": metadata or None,
            "expires": None if expires is None else timedelta(seconds=expires),
            **{name: value for name, value in changed.items() if value is not UNSET},
        }
        own = registry.get(row.task_type)
        differing = {name: value for name, value in options.items() if value != getattr(own, name, None)}
        is_call = isinstance(args, list) and isinstance(kwargs, dict)
        return cls((args, kwargs) if is_call else ((), {}), differing)


def read_initial(row: Schedule, stored: StoredTask) -> dict[str, Any]:
    """Return the values of the fields for a row."""
    names = ("name", "backend", "overlap", "catch_up", "max_catch_up", "starts_at", "ends_at")
    expires = stored.options.get("expires")
    return {
        **{name: getattr(row, name) for name in names},
        **stored.options,
        "task": registry.name_now(row.task_type),
        "timeout": without_fraction(stored.options.get("timeout")),
        "expires": expires and without_fraction(expires.total_seconds()),
        "catch_up_window": without_fraction(row.catch_up_window_seconds),
        "jitter": without_fraction(row.jitter_seconds),
        **_initial_timing(row),
    }


def _initial_timing(row: Schedule) -> dict[str, Any]:
    try:
        expression = parse_expression(row)
    except ValueError:  # shown as it is, to be corrected
        expression = Cron(row.expression, row.timezone)
    match expression:
        case Every(interval=interval, anchor=anchor):
            seconds = interval.total_seconds()
            unit = max(length for length, _name in LENGTHS if length == 1 or seconds % length == 0)
            anchor_at = None if anchor == EPOCH else row.anchor_at
            return {"kind": INTERVAL, "interval": without_fraction(seconds / unit), "unit": unit, "anchor": anchor_at}
    return {"kind": CRON, "expression": row.expression, "timezone": row.timezone}
