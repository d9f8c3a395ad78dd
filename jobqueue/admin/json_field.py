"""A form's field for JSON."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from jobqueue.exceptions import InvalidArguments
from jobqueue.values.json import encode

EMPTY: Final = object()
COMPACT = 60  # characters; a longer text is indented


class JsonField(forms.CharField):
    """A text of JSON. The value is the parsed one, EMPTY for an empty text. Rows can store it."""

    def __init__(self, *, rows: int, **options: Any) -> None:
        attrs = {"rows": rows, "class": "jq-json", "spellcheck": "false", "autocomplete": "off"}
        super().__init__(strip=False, widget=forms.Textarea(attrs=attrs), **options)

    def clean(self, value: Any) -> Any:
        """Return the parsed value. Raises ValidationError with line and column of an error of the JSON."""
        text = super().clean(value)
        if not text.strip():
            self.validate(text.strip())
            return EMPTY
        try:
            parsed = json.loads(text)
            encode(parsed, where=_("The value"), max_bytes=sys.maxsize)  # the backend checks the size
        except json.JSONDecodeError as error:
            sentence = _(
                'Not valid JSON: %(problem)s in line %(line)d, column %(column)d. Strings need quotes: "home".'
            )
            values = {"problem": error.msg, "line": error.lineno, "column": error.colno}
            raise ValidationError(sentence % values) from error
        except InvalidArguments as error:
            raise ValidationError(f"{error}.") from error
        except (ValueError, RecursionError) as error:
            raise ValidationError(_("Unreadable JSON: %(problem)s") % {"problem": error}) from error
        return parsed

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare without the line ends that browsers change."""
        return super().has_changed(initial, data and data.replace("\r\n", "\n"))


def json_text(value: Any) -> str:
    """Return a value as the field shows it."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= COMPACT else json.dumps(value, ensure_ascii=False, indent=2)
