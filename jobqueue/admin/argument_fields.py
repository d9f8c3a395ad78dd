"""The arguments of a task as fields of a form, made from the signature of its function."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from jobqueue.admin.json_field import EMPTY, JsonField, json_text
from jobqueue.values.arguments import Parameters
from jobqueue.values.redaction import MASK, redact

Call = tuple[Sequence[Any], Mapping[str, Any]]
Kinds = inspect.Parameter
# A type, perhaps with None. Annotations are read as text, because only a type checker can evaluate some of them.
ANNOTATION = re.compile(
    r"(?:typing\.)?Optional\[(?:datetime\.)?(?P<optional>\w+)\]|(?:datetime\.)?(?P<name>\w+)(?P<or_none> \| None)?"
)
ANY_CALL = inspect.signature(lambda *args, **kwargs: None)


@dataclass(frozen=True)
class FieldKind:
    """The form field of a type of values, and the conversions."""

    field: Callable[..., forms.Field]  # makes the form field
    text: Callable[[Any], Any] = str  # from an argument to the field's initial value
    value: Callable[[Any], Any] = lambda cleaned: cleaned  # from the cleaned value of the field to an argument


def _text_field(**options: Any) -> forms.Field:
    return forms.CharField(strip=False, widget=forms.TextInput(attrs={"autocomplete": "off"}), **options)


def _date_field(**options: Any) -> forms.Field:
    widget = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    return forms.DateField(input_formats=["%Y-%m-%d"], widget=widget, **options)


def _flag_field(**options: Any) -> forms.Field:
    return forms.BooleanField(**{**options, "required": False})  # a required box must be ticked


def _json_field(**options: Any) -> forms.Field:
    return JsonField(rows=2, **options)


JSON = FieldKind(_json_field, json_text)
TEXT = FieldKind(_text_field)
FLAG = FieldKind(_flag_field, bool)
KINDS: Mapping[str, FieldKind] = {
    "str": TEXT,
    "bool": FLAG,
    "int": FieldKind(forms.IntegerField),
    "float": FieldKind(forms.FloatField, repr),
    "date": FieldKind(_date_field, str, date.isoformat),  # JSON has no dates
}


@dataclass(frozen=True)
class ArgumentField:
    """One parameter of a task's function as a field."""

    parameter: inspect.Parameter  # of the function
    stored: Any = EMPTY  # its value in the row, or EMPTY
    redacted: Any = EMPTY  # that value redacted, or EMPTY

    @property
    def is_masked(self) -> bool:
        return bool(self.redacted != self.stored)

    @property
    def is_required(self) -> bool:
        is_variable = self.parameter.kind in (Kinds.VAR_POSITIONAL, Kinds.VAR_KEYWORD)
        return self.parameter.default is Kinds.empty and not is_variable

    @property
    def annotation(self) -> str:
        annotation = self.parameter.annotation
        if annotation is Kinds.empty:
            return ""
        return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    @property
    def allows_none(self) -> bool:
        match = ANNOTATION.fullmatch(self.annotation)
        return bool(match and (match["optional"] or match["or_none"]))

    @cached_property
    def kind(self) -> FieldKind:
        """Return how the value is typed: as its annotation says, or as JSON if that would change the stored value."""
        match, default = ANNOTATION.fullmatch(self.annotation), self.parameter.default
        kind = KINDS.get(match["name"] or match["optional"], JSON) if match else JSON
        if not self.is_required and default is Kinds.empty:  # *args and **kwargs
            return JSON
        if kind is FLAG and (self.allows_none or not (self.is_required or isinstance(default, bool))):
            return JSON
        return kind if self.redacted is EMPTY or self._keeps(kind) else JSON

    @property
    def has_visible_default(self) -> bool:
        """Whether the field contains the default at first. Then an empty text is a value."""
        return self.kind in (TEXT, FLAG) and isinstance(self.parameter.default, str | bool)

    def _keeps(self, kind: FieldKind) -> bool:
        text = self._text(kind)
        if isinstance(text, str) and not text.isprintable():  # browsers change line ends
            return False
        try:
            sent = self._read(kind, kind.field(required=False).clean(text))
        except ValidationError:
            return False
        return is_same(self.parameter.default if sent is EMPTY else sent, self.redacted)

    def _text(self, kind: FieldKind) -> Any:
        return "" if self.redacted is None and kind is not JSON else kind.text(self.redacted)

    def _read(self, kind: FieldKind, cleaned: Any) -> Any:
        if kind is JSON or cleaned not in (None, ""):
            return kind.value(cleaned)
        if self.is_required and self.allows_none:
            return None
        return "" if kind is TEXT and isinstance(self.parameter.default, str) else EMPTY

    def field(self) -> forms.Field:
        first = self.parameter.default if self.has_visible_default else None
        return self.kind.field(
            label=self.parameter.name,
            required=self.is_required and (self.kind is JSON or not self.allows_none),
            initial=first if self.redacted is EMPTY else self._text(self.kind),
            help_text=" ".join(self._help()),
        )

    def _help(self) -> Iterator[str]:
        if self.annotation:
            yield _("Type: %(type)s.") % {"type": f"{self.annotation:.100}"}
        if self.parameter.kind is Kinds.VAR_POSITIONAL:
            yield _("More arguments, as a JSON list.")
        elif self.parameter.kind is Kinds.VAR_KEYWORD:
            yield _("More arguments by name, as a JSON object.")
        elif self.kind is JSON:
            yield _('Written as JSON: strings need quotes, as in "home".')
        if self.parameter.default is not Kinds.empty and not self.has_visible_default:
            yield _("Leave it empty for the default, %(default)s.") % {"default": f"{self.parameter.default!r:.100}"}
        if self.is_masked:
            yield _("Parts of the value are masked. They stay as they are if you do not change the text.")

    def value(self, cleaned: Any) -> Any:
        """Return the argument, EMPTY to leave it to its default. Raises ValidationError."""
        value = self._read(self.kind, cleaned)
        if self.is_masked and value == self.redacted:
            return self.stored
        if value is EMPTY or (self.kind is not JSON and is_same(value, self.parameter.default)):
            return EMPTY
        if self.is_masked and MASK in json.dumps(value, ensure_ascii=False):
            text = _("%(mask)s stands for a masked part, which cannot be stored. Enter the whole value.")
            raise ValidationError(text % {"mask": MASK})
        if self.parameter.kind is Kinds.VAR_POSITIONAL and not isinstance(value, list):
            raise ValidationError(_("This must be a JSON list, such as [1, 2]."))
        if self.parameter.kind is Kinds.VAR_KEYWORD and not isinstance(value, dict):
            raise ValidationError(_('This must be a JSON object, such as {"page": "home"}.'))
        return value


def is_same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


class ArgumentsForm(forms.Form):
    """
    The arguments of one task.

    stored: those of the row if it has this task. patterns: which parts are masked. typed: to show again, unchecked.
    """

    prefix = "argument"
    required_css_class = "required"

    def __init__(
        self,
        data: Mapping[str, Any] | None,
        *,
        parameters: Parameters,
        stored: Call | None,
        patterns: Sequence[str],
        typed: Mapping[str, Any] | None,
        prefix: str | None = None,
    ) -> None:
        super().__init__(data, prefix=prefix)
        self.arguments = _arguments(parameters, stored, patterns)
        for name, argument in self.arguments.items():
            self.fields[name] = argument.field()
        if typed is not None:
            self.initial = {name: typed.get(self.add_prefix(name), "") for name in self.fields}

    def clean(self) -> dict[str, Any]:
        """Replace what the fields contain by the arguments."""
        for name in self.arguments.keys() & self.cleaned_data.keys():
            try:
                self.cleaned_data[name] = self.arguments[name].value(self.cleaned_data[name])
            except ValidationError as error:
                self.add_error(name, error)
        for name, argument in self.arguments.items():
            more = self.cleaned_data.get(name, EMPTY)
            if argument.parameter.kind is Kinds.VAR_KEYWORD and more is not EMPTY:
                for other in more.keys() & self.arguments.keys():
                    self.add_error(name, _("%(name)s has a field of its own.") % {"name": other})
        return self.cleaned_data

    def call(self) -> Call:
        """Return args and kwargs of a valid form. Most arguments are given by name."""
        parameters = [argument.parameter for argument in self.arguments.values()]
        values = {name: value for name, value in self.cleaned_data.items() if value is not EMPTY}
        name_of = {parameter.kind: parameter.name for parameter in parameters}
        rest: list[Any] = values.pop(name_of.get(Kinds.VAR_POSITIONAL, ""), [])
        more: dict[str, Any] = values.pop(name_of.get(Kinds.VAR_KEYWORD, ""), {})
        by_position = (Kinds.POSITIONAL_ONLY, Kinds.POSITIONAL_OR_KEYWORD) if rest else (Kinds.POSITIONAL_ONLY,)
        first = [parameter for parameter in parameters if parameter.kind in by_position]
        while first and not rest and first[-1].name not in values:
            first.pop()
        return [*(values.pop(parameter.name, parameter.default) for parameter in first), *rest], {**values, **more}


def _arguments(parameters: Parameters, stored: Call | None, patterns: Sequence[str]) -> dict[str, ArgumentField]:
    """Return the arguments by name. Stored ones that do not fit the function are one list and one object."""
    if stored is None:
        return {name: ArgumentField(parameter) for name, parameter in parameters.signature.parameters.items()}
    args, kwargs = stored
    try:
        bound = parameters.signature.bind(*args, **kwargs).arguments
    except TypeError:
        names = [*parameters.positional, *[None] * len(args)]
        masked = [redact(value, patterns, name) if name else MASK for value, name in zip(args, names, strict=False)]
        any_args, any_kwargs = ANY_CALL.parameters.values()
        return {
            "args": ArgumentField(any_args, args, masked if patterns else args),
            "kwargs": ArgumentField(any_kwargs, kwargs, redact(kwargs, patterns)),
        }
    fields: dict[str, ArgumentField] = {}
    for name, parameter in parameters.signature.parameters.items():
        path = () if parameter.kind is Kinds.VAR_KEYWORD else (name,)
        value = bound.get(name, EMPTY)
        value = list(value) if parameter.kind is Kinds.VAR_POSITIONAL and name in bound else value
        fields[name] = ArgumentField(parameter, value, value if value is EMPTY else redact(value, patterns, *path))
    return fields
